"""Help, version and what the command line refuses."""

import json
import os
import resource
import struct
import subprocess
import time
import unittest

from support import DEMO, EBB, ROOT, ProgramTest

COMMANDS = (["ab"], ["run"], ["generate"], ["check"], ["plan"], ["inspect"], ["modules"], ["eval"], ["bench"], ["dump"],
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
                          ("ab", manifest, "-i", "x", "-o", "-"),
                          ("dump", manifest, "-i", "x", "-o", "-"),
                          ("bench", manifest, "--csv", "-"), ("bench", manifest, "--json", "-"),
                          ("replay", "x", "--json", "-"), ("replay", "x", "--csv", "-"),
                          ("replay", "x", "--oracle-general", "-")):
            result = self.expect(2, *arguments, cwd=self.folder)
            self.assertIn("want a name; ./- if it is to be called so", result.err)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["m.toml"])
        batch = self.batch([{"id": "a", "tokens": [1], "max_tokens": 1}])
        self.expect(0, "run", manifest, "-i", batch, "-o", "./-", cwd=self.folder)
        self.assertEqual(len(self.results("-")), 1)

    def test_two_outputs_that_are_not_there_yet_are_one_by_any_relative_name(self):
        manifest = self.manifest()
        batch = self.batch([{"id": "a", "tokens": [1], "max_tokens": 1}])
        before = sorted(path.name for path in self.folder.iterdir())
        for arguments, says in (
                (("bench", manifest, "--csv", "b", "--json", "./b"), "named by --csv and by --json"),
                (("bench", manifest, "--csv", "./b.svg", "--plot", "b.svg"), "named by --csv and by"),
                (("run", manifest, "-i", batch, "-o", "b", "--trace", "./b"),
                 "named by --output and by --trace")):
            result = self.expect(2, *arguments, cwd=self.folder)
            self.assertIn(says, result.err)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)

    def test_a_folder_is_not_put_where_the_command_runs(self):
        manifest = self.manifest()
        batch = self.batch([{"id": "a", "tokens": [1], "max_tokens": 1}])
        here = self.folder / "here"
        here.mkdir()
        for name in (".", "./", "../here", here):
            result = self.expect(2, "dump", manifest, "-i", batch, "-o", name, cwd=here)
            self.assertIn("the command runs in it", result.err)
        self.assertEqual(list(here.iterdir()), [])
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["here", "m.toml", "p.jsonl"])
        # A folder that was taken away meanwhile has no name to start from.
        for name, says in ((".", "the command runs in it"), ("..", "ebb: .."),
                           ("new/..", "cannot make the folder"), ("new", "cannot make the folder")):
            here.mkdir(exist_ok=True)
            done = subprocess.run(["/bin/sh", "-c", 'rmdir "$PWD"; exec "$0" "$@"', EBB, "dump",
                                   manifest, "-i", batch, "-o", name],
                                  capture_output=True, text=True, timeout=120, cwd=here)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(says, done.stderr)
            self.assertFalse(here.exists())

    def test_a_file_without_a_name_is_refused_and_not_left_out(self):
        manifest = self.manifest()
        for arguments in (("run", manifest, "-i", "x", "-o", ""),
                          ("run", manifest, "-i", "x", "-o", "y", "--trace", ""),
                          *((*command, "", *more) for command, more in (
                              (("check",), ()), (("plan",), ()), (("bench",), ()), (("inspect",), ()),
                              (("replay",), ()), (("run",), ("-i", "x", "-o", "y")),
                              (("ab", manifest), ("-i", "x", "-o", "y")),
                              (("dump",), ("-i", "x", "-o", "y")))),
                          *((*command, manifest, "-i", "", *more) for command, more in (
                              (("run",), ("-o", "y")), (("ab",), ("-o", "y")), (("dump",), ("-o", "y")),
                              (("eval", "logits"), ("-o", "y")), (("eval", "needles"), ()),
                              (("eval", "perplexity"), ()))),
                          ("ab", manifest, "-i", "x", "-o", ""), ("dump", manifest, "-i", "x", "-o", ""),
                          ("eval", "logits", manifest, "-i", "x", "-o", ""),
                          ("eval", "needles", manifest, "-i", "x", "-o", ""),
                          ("eval", "needles", manifest, "-i", "x", "--likelihood", "--against", ""),
                          *(("bench", manifest, flag, "") for flag in ("--csv", "--json", "--plot")),
                          *(("replay", "x", flag, "") for flag in (
                              "--json", "--csv", "--plot", "--oracle-general", "--selections"))):
            result = self.expect(2, *arguments, cwd=self.folder)
            self.assertIn("the name of the file is empty", result.err)
        self.assertEqual([path.name for path in self.folder.iterdir()], ["m.toml"])

    def test_lists_of_numbers_hold_numbers_and_nothing_else(self):
        manifest = self.manifest()
        for command in (("ab", manifest, "-i", "x", "-o", "y", "--slots"), ("replay", "x", "--slots"),
                        ("dump", manifest, "-i", "x", "-o", "y", "--layers"),
                        ("bench", manifest, "--frontiers"), ("bench", manifest, "--batch")):
            for text in ("", ",", "8,", ",8", "8,,9", "8 9", "-1", "1.5", "nan", "99999999999999999999"):
                result = self.expect(2, *command, text)
                self.assertIn("with commas between", result.err)
                self.assertEqual(result.out, "")
        self.assertFalse((self.folder / "y").exists())
        # In the order in which they are told.
        self.expect_refused("layer 3 has no index keys", "dump", manifest, "-i", self.batch(
            [{"id": "a", "tokens": [1]}]), "-o", self.path("y"), "--layers", "8,3,2")

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

    def test_a_fifo_is_refused_and_not_waited_for(self):
        os.mkfifo(self.path("fifo"))
        for command in (("inspect",), ("inspect", "--json"), ("replay",), ("check",), ("plan",),
                        ("check", self.manifest(), "--set", f"loader.path={self.path('fifo')}")):
            place = () if "--set" in command else (self.path("fifo"),)
            result = self.expect(2, *command, *place, timeout=20)
            self.assertIn("fifo: not a regular file", result.err)

    def test_output_that_cannot_be_written_is_a_fault(self):
        # More than a buffer holds, and less.
        for arguments in (("modules",), ("check", self.manifest()), ("--help",), ("run", "--help")):
            for end, status, says in ((">/dev/full", 4, b"ebb: standard output cannot be written\n"),
                                      (">&-", 4, b"ebb: standard output cannot be written\n"),
                                      ("| true", 141, b"")):
                # The reader is gone before anything is written.
                script = f'exec 3>&1; set -o pipefail; {{ sleep 0.2; "$@"; }} {end}'
                done = subprocess.run(["bash", "-c", script, "sh", EBB, *arguments], timeout=60,
                                      capture_output=True)
                self.assertEqual((done.returncode, done.stderr), (status, says), (arguments, end))

    def test_what_cannot_be_shown_is_written_and_what_cannot_be_written_is_shown(self):
        manifest = self.manifest()
        batch = self.batch([{"id": "a", "tokens": [1, 2], "max_tokens": 2}])
        needles = self.write("n.jsonl", '{"id": "a", "prompt": "x", "answer": "y"}\n')
        bench = ("bench", manifest, "--frontiers", "8", "--new", "1", "--csv", self.path("b.csv"),
                 "--json", self.path("b.json"), "--plot", self.path("b.svg"))
        eval_needles = ("eval", "needles", manifest, "-i", needles, "-o", self.path("n.out"))
        compare = ("ab", manifest, "-i", batch, "--rounds", "1", "-o", self.path("report"))
        names = ["b.csv", "b.json", "b.svg", "n.out", "report"]

        def made():
            return sorted(p.name for p in self.folder.iterdir()
                          if p.name not in ("m.toml", "p.jsonl", "n.jsonl"))

        fault = {**os.environ, "LD_PRELOAD": os.environ["EBB_FAULTS"], "EBB_FAULT": "rename:1:enospc",
                 "ASAN_OPTIONS": "verify_asan_link_order=0"}
        for arguments, shows in ((bench, "tok/s"), (eval_needles, "decode tok/s"),
                                 (compare, "against itself")):
            before = made()
            result = self.expect(4, *arguments, env=fault)
            self.assertIn("No space left on device", result.err)
            self.assertIn(shows, result.out)
            self.assertEqual(made(), before)
            with open("/dev/full", "w") as full:
                done = subprocess.run([EBB, *arguments], stdout=full, stderr=subprocess.DEVNULL,
                                      timeout=100)
            self.assertEqual(done.returncode, 4)
        self.assertEqual(made(), names)

    def test_a_limit_of_the_size_of_files_is_a_disk_that_is_full(self):
        def limit():  # as `ulimit -f`
            resource.setrlimit(resource.RLIMIT_FSIZE, (16, 16))
        batch = self.batch([{"id": "a", "tokens": [1, 2], "max_tokens": 2}])
        manifest = self.manifest()
        before = sorted(path.name for path in self.folder.iterdir())
        for command in ("run", "dump", "ab"):
            result = self.expect(4, command, manifest, "-i", batch, "-o", self.path("out"),
                                 preexec_fn=limit)
            self.assertIn("cannot write: File too large", result.err)
            self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)

    def test_generation_ends_when_nobody_reads_it(self):
        script = 'set -o pipefail; "$@" | head -c 1 > /dev/null'
        begin = time.monotonic()
        done = subprocess.run(["bash", "-c", script, "sh", EBB, "generate", self.manifest(
            max_context=20000), "-p", "It was", "-n", "19000", "--ignore-eos"], timeout=200,
            capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (141, b""))
        self.assertLess(time.monotonic() - begin, 20)

    def test_the_program_finds_its_modules_from_any_folder(self):
        self.expect(0, "modules", cwd="/")
        link = self.folder / "ebb-link"
        link.symlink_to(EBB)
        self.expect(0, "inspect", DEMO / "ds4-mini-q8_0.gguf", cwd="/")


if __name__ == "__main__":
    unittest.main()
