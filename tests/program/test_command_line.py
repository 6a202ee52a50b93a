"""Help, version and what the command line refuses."""

import json
import struct
import subprocess
import unittest

from support import DEMO, EBB, ROOT, ProgramTest

COMMANDS = (["ab"], ["run"], ["generate"], ["check"], ["plan"], ["inspect"], ["modules"], ["eval"], ["bench"],
            ["replay"], ["eval", "logits"], ["eval", "needles"], ["eval", "perplexity"])


class CommandLine(ProgramTest):
    def test_help_names_every_command_and_the_exit_statuses(self):
        text = self.expect(0, "--help").out
        for command in ("ab", "run", "generate", "check", "inspect", "modules", "eval", "bench",
                        "replay", "130"):
            self.assertIn(command, text)

    def test_every_command_has_help(self):
        for command in COMMANDS:
            for flag in ("--help", "-h"):
                result = self.expect(0, *command, flag)
                self.assertIn("Usage: ebb " + " ".join(command), result.out)
                self.assertEqual(result.err, "")

    def test_version_names_program_and_abi(self):
        self.assertRegex(self.expect(0, "--version").out, r"^ebb \d+\.\d+\.\d+ \(module ABI \S+\)$")

    def test_unknown_flags_are_refused(self):
        manifest = self.manifest()
        needs = {"ab": [manifest, "-i", "x", "-o", "y"], "run": [manifest, "-i", "x", "-o", "y"], "generate": [manifest, "-p", "x"],
                 "check": [manifest], "plan": [manifest], "bench": [manifest], "inspect": ["x"], "modules": [], "replay": ["x"],
                 "eval logits": [manifest, "-i", "x", "-o", "y"],
                 "eval needles": [manifest, "-i", "x"], "eval perplexity": [manifest, "-i", "x"]}
        for command, arguments in needs.items():
            result = self.expect(2, *command.split(), *arguments, "--frobnicate")
            self.assertIn("--frobnicate", result.err)
            self.assertEqual(result.out, "")

    def test_missing_and_unknown_commands_are_refused(self):
        self.expect(2)
        self.expect(2, "frobnicate")
        self.expect(2, "eval")
        self.expect(2, "run")

    def test_numbers_out_of_range_are_refused(self):
        manifest = self.manifest()
        for flag, value in (("-n", "0"), ("-n", "many"), ("--temp", "-1"), ("--top-p", "2"),
                            ("--top-k", "-1"), ("--seed", "-1"), ("--stop", "")):
            self.assertIn(flag.lstrip("-"), self.expect(2, "generate", manifest, "-p", "x", flag,
                                                        value).err)

    def test_a_seed_beyond_the_largest_is_refused_and_not_cut_down(self):
        generate = ("generate", self.manifest(), "-p", "x", "-n", "3", "--temp", "5", "--seed")
        largest = self.expect(0, *generate, str(2 ** 63 - 1)).out
        self.assertNotEqual(largest, self.expect(0, *generate, str(2 ** 63 - 2)).out)
        for seed in (2 ** 63, 2 ** 64, 10 ** 30, "1.5", "1e3", "0x10", ""):
            self.assertIn("whole number", self.expect(2, *generate, str(seed)).err)
        for command in (("needles", "--limit"), ("perplexity", "--tokens")):
            self.expect(2, "eval", command[0], self.manifest(), "-i", "x", command[1], 10 ** 30)

    def test_results_do_not_go_to_a_file_called_dash(self):
        manifest = self.manifest()
        for arguments in (("run", manifest, "-i", "x", "-o", "-"),
                          ("run", manifest, "-i", "x", "-o", "y", "--trace", "-"),
                          ("eval", "logits", manifest, "-i", "x", "-o", "-"),
                          ("eval", "needles", manifest, "-i", "x", "-o", "-"),
                          ("bench", manifest, "--csv", "-"), ("bench", manifest, "--json", "-"),
                          ("replay", "x", "--json", "-"), ("replay", "x", "--csv", "-"),
                          ("replay", "x", "--oracle-general", "-")):
            result = self.expect(2, *arguments, cwd=self.folder)
            self.assertIn("want a file; ./- if it is to be called so", result.err)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["m.toml"])
        batch = self.batch([{"id": "a", "tokens": [1], "max_tokens": 1}])
        self.expect(0, "run", manifest, "-i", batch, "-o", "./-", cwd=self.folder)
        self.assertEqual(len(self.results("-")), 1)

    def test_a_file_without_a_name_is_refused_and_not_left_out(self):
        manifest = self.manifest()
        for arguments in (("run", manifest, "-i", "x", "-o", ""),
                          ("run", manifest, "-i", "x", "-o", "y", "--trace", ""),
                          ("eval", "logits", manifest, "-i", "x", "-o", ""),
                          ("eval", "needles", manifest, "-i", "x", "-o", ""),
                          ("eval", "needles", manifest, "-i", "x", "--likelihood", "--against", ""),
                          *(("bench", manifest, flag, "") for flag in ("--csv", "--json", "--plot")),
                          *(("replay", "x", flag, "") for flag in (
                              "--json", "--csv", "--plot", "--oracle-general", "--selections"))):
            result = self.expect(2, *arguments, cwd=self.folder)
            self.assertIn("the name of the file is empty", result.err)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["m.toml"])

    def test_set_of_a_module_and_its_keys_in_any_order(self):
        one, other = "compute.threads=3", "compute.module=compute_cpu"
        manifest = self.write("cuda.toml", (self.folder / self.manifest()).read_text().replace(
            'module = "compute_cpu"\nthreads = 1', 'module = "compute_none"\ndevice = 5'))
        for settings in ((one, other), (other, one)):
            out = self.expect(0, "check", manifest, "--set", settings[0], "--set", settings[1]).out
            self.assertIn("CPU, 3 threads", out)
        result = self.expect_refused("--set compute.device=1: [compute] device: unknown key", "check",
                                     manifest, "--set", "compute.device=1", "--set", other)

    def test_generate_wants_one_prompt_and_one_form(self):
        manifest = self.manifest()
        self.expect(2, "generate", manifest)
        self.expect(2, "generate", manifest, "-p", "x", "-f", "y")
        self.expect(2, "generate", manifest, "-p", "x", "--raw", "--chat")
        self.expect(2, "generate", manifest, "-p", "x", "--system", "s")

    def test_set_takes_one_value_each_and_leaves_the_manifest_alone(self):
        manifest = self.manifest()
        result = self.expect(0, "check", "--set", "engine.max_context=100", "--set",
                             "compute.threads=1", manifest)
        self.assertIn("100 tokens a sequence", result.out)

    def test_modules_lists_keys_with_defaults(self):
        text = self.expect(0, "modules").out
        for name in ("loader_gguf", "tokenizer_gguf", "compute_cpu", "comm_self", "attention_csa",
                     "decoder_deepseek4"):
            self.assertRegex(text, rf"(?m)^{name} ")
        self.assertIn('    precision = "exact"', text)
        brief = self.expect(0, "modules", "--brief").out
        self.assertNotIn("precision", brief)

    def test_modules_says_which_files_cannot_be_used_and_why(self):
        self.write("text.so", "this is no library")
        text = self.expect(0, "modules", "--folder", self.folder).out
        self.assertRegex(text, r"cannot be used: .*text\.so: ")
        self.expect_refused("nowhere", "modules", "--folder", self.path("nowhere"))

    def test_inspect_shows_metadata_tensors_and_totals(self):
        text = self.expect(0, "inspect", DEMO / "ds4-mini-q8_0.gguf").out
        self.assertIn("deepseek4.block_count = 9", text)
        self.assertIn("4096 in all]", text)
        self.assertRegex(text, r"token_embd\.weight +F16 +\[256, 4096\] +2\.00 MiB")
        self.assertRegex(text, r"in all +274 +15351019 ")

    def test_inspect_shows_safetensors(self):
        header = json.dumps({"__metadata__": {"format": "pt\x1b"},
                             "b": {"dtype": "BF16", "shape": [3], "data_offsets": [24, 30]},
                             "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}}).encode()
        data = struct.pack("<Q", len(header)) + header + bytes(30)
        for name in ("x.safetensors", "x.bin"):
            path = self.write(name, data)
            text = self.expect(0, "inspect", path).out
            self.assertIn('format = "pt\\x1b"', text)
            self.assertRegex(text, r"(?s)  a +F32 +\[2, 3\] +24 B\n  b +BF16 +\[3\] +6 B\n")
            self.assertRegex(text, r"in all +2 +9 +30 B")
        shown = json.loads(self.expect(0, "inspect", "--json", path).out)
        self.assertEqual([t["shape"] for t in shown["tensors"]], [[2, 3], [3]])
        self.assertEqual(shown["tensors"][1]["offset"], 8 + len(header) + 24)
        self.assertEqual(shown["types"]["F32"], {"tensors": 1, "values": 6, "bytes": 24})
        cut = self.write("cut.safetensors", data[:-1])
        self.expect_refused("tensor b: its data end at 30", "inspect", cut)
        self.expect_refused("no-such", "inspect", self.path("no-such.safetensors"))

    def test_inspect_refuses_other_files(self):
        self.expect_refused("README.md", "inspect", ROOT / "tests" / "data" / "README.md")
        self.expect_refused("no-such-file", "inspect", self.path("no-such-file"))

    def test_output_that_cannot_be_written_is_a_fault(self):
        with open("/dev/full", "w") as full:
            done = subprocess.run([EBB, "modules"], stdout=full, stderr=subprocess.PIPE, timeout=60)
        self.assertEqual(done.returncode, 4)
        self.assertRegex(done.stderr, rb"^ebb: .*writ.*\n$")

    def test_the_program_finds_its_modules_from_any_folder(self):
        self.expect(0, "modules", cwd="/")
        link = self.folder / "ebb-link"
        link.symlink_to(EBB)
        self.expect(0, "inspect", DEMO / "ds4-mini-q8_0.gguf", cwd="/")


if __name__ == "__main__":
    unittest.main()
