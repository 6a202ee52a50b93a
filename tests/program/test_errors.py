"""Manifests and models that cannot be used: the status, one line that says why, and no output."""

import os
import pathlib
import re
import resource
import unittest

from support import DATA, DEMO, EBB, FIXTURES, ProgramTest


class Refusals(ProgramTest):
    def edited(self, old, new):
        path = self.manifest()
        text = (self.folder / "m.toml").read_text()
        self.assertIn(old, text)
        return self.write("m.toml", text.replace(old, new)) and path

    def test_names_of_selections_are_told_in_plain_characters(self):
        bad = self.write("a\x1b[2J", b"no selections in here at all")
        for path, says in ((bad, "a\\x1b[2J: no file of selections"),
                           (self.path("b\x1b[2J"), "b\\x1b[2J: cannot be read")):
            escaped = path.replace("\x1b", "\\u001b")
            self.expect_refused(says, "check", self.manifest(), "--set",
                                f'attention.selections="{escaped}"')

    def test_a_missing_manifest(self):
        self.expect_refused("none.toml: no such file", "check", self.path("none.toml"))

    def test_a_folder_as_manifest(self):
        self.expect_refused("not a regular file", "check", self.folder)

    def test_a_syntax_error_names_its_place(self):
        result = self.expect_refused("m.toml:", "check", self.edited("[engine]", "[engine"))
        self.assertRegex(result.err, r"m\.toml:\d+:\d+: ")

    def test_an_unknown_key_names_its_place(self):
        self.expect_refused("max_contxt", "check", self.edited("max_context", "max_contxt"))
        self.expect_refused("thread", "check", self.edited("threads = 1", "thread = 1"))

    def test_a_wrong_type_and_a_value_out_of_range(self):
        self.expect_refused("max_context", "check", self.edited("= 512", '= "long"'))
        self.expect_refused("max_context = 0", "check", self.edited("= 512", "= 0"))

    def test_all_mistakes_of_the_manifest_are_told_together(self):
        self.edited("max_context = 512", "max_context = 0\nmax_contxt = 1")
        self.expect_refused("max_contxt", "check", self.path("m.toml"), lines=2)

    def test_an_unknown_section(self):
        self.expect_refused("[comms]"[1:-1], "check", self.edited("[comm]", "[comms]"), lines=2)

    def test_a_bad_override_names_itself(self):
        manifest = self.manifest()
        self.expect_refused("--set engine.max_context=none", "check", manifest, "--set",
                            "engine.max_context=none")
        self.expect_refused("nonsense", "check", manifest, "--set", "nonsense")

    def test_more_context_than_the_model_was_made_for(self):
        self.expect_refused("max_context = 100000", "check", self.manifest(max_context=100000))

    def test_a_missing_module(self):
        folder = pathlib.Path(EBB).parent / "modules"
        manifest = self.edited("compute_cpu", "compute_gpu")
        result = self.expect_refused(f'"compute_gpu": {folder}/compute_gpu.so: no such file; '
                                     "compute modules in that folder: compute_cpu", "check", manifest)
        self.assertNotIn("nvcc", result.err)

    def test_compute_cuda_where_it_was_not_built(self):
        built = pathlib.Path(EBB).parent / "modules"
        folder = self.folder / "modules"
        folder.mkdir()
        for name in ("loader_gguf", "tokenizer_gguf", "compute_cpu", "comm_self"):
            (folder / f"{name}.so").symlink_to(built / f"{name}.so")
        manifest = self.edited("compute_cpu", "compute_cuda")
        says = (f'[compute] module = "compute_cuda": {folder}/compute_cuda.so: '
                "no such file; compute modules in that folder: compute_cpu; compute_cuda is built "
                "only where nvcc is found and EBB_CUDA is not OFF")
        batch = self.write("batch.jsonl", '{"id": "a", "prompt": "Who?", "max_tokens": 1}\n')
        for command in (["check", manifest], ["plan", manifest],
                        ["generate", manifest, "-p", "Who?"],
                        ["run", manifest, "-i", batch, "-o", self.path("r.jsonl")]):
            self.expect_refused(says, *command, "--set", f"modules.path={folder}")
        # Another module that is missing has nothing to do with nvcc.
        (folder / "comm_self.so").unlink()
        result = self.expect_refused("comm modules in that folder: none", "check", self.manifest(),
                                     "--set", f"modules.path={folder}")
        self.assertNotIn("nvcc", result.err)

    def test_a_text_file_as_module(self):
        file = self.write("text.so", "this is no library")
        self.expect_refused("text.so", "check",
                            self.edited('"compute_cpu"', f'"{file}"'))

    def test_a_module_of_another_kind(self):
        self.expect_refused("comm_self", "check", self.edited("compute_cpu", "comm_self"))

    def test_broken_modules_are_refused_one_and_all(self):
        modules = sorted(set(FIXTURES.glob("*.so")) - {FIXTURES / "fixture_good.so"})
        self.assertGreater(len(modules), 9)
        for file in modules:
            manifest = self.edited('"comm_self"', f'"{file}"')
            result = self.ebb("check", manifest)
            self.assertIn(result.status, (2, 4), f"{file}: {result.err}")
            self.assertEqual(result.out, "", file)
            self.assertEqual(len(result.err.splitlines()), 1, result.err)

    def test_a_model_that_is_none(self):
        self.expect_refused("missing.gguf", "check", self.manifest(model="missing.gguf"))
        self.write("text.gguf", "GGUF is what this is not")
        self.expect_refused("text.gguf", "check", self.manifest(model="text.gguf"))

    def test_a_truncated_model_names_file_tensor_and_offset(self):
        whole = (DEMO / "ds4-mini-q8_0.gguf").read_bytes()
        self.write("cut.gguf", whole[:len(whole) // 2])
        result = self.expect_refused("cut.gguf", "check", self.manifest(model="cut.gguf"))
        self.assertRegex(result.err, r"tensor \S+ at offset \d+")

    def test_a_tokenizer_for_a_model_that_has_none(self):
        self.expect_refused("tokenizer", "check", self.manifest(model=DATA / "models" /
                                                                 "tiny_kmix.gguf"))

    def test_a_memory_limit_that_is_too_low(self):
        result = self.expect(3, "check", self.manifest(), "--set", "compute.memory_limit=64KiB")
        self.assertEqual(result.out, "")
        self.assertIn("memory_limit is 65536", result.err)

    def test_a_session_larger_than_the_machine(self):
        manifest = self.manifest(max_context=65536, max_sequences=1024)
        result = self.expect(3, "check", manifest)
        self.assertEqual(result.out, "")
        self.assertIn("the machine has", result.err)

    @unittest.skipIf(os.environ.get("EBB_SANITIZE"), "sanitizers map more than any limit")
    def test_more_threads_than_the_system_gives(self):
        def limit():  # room for about a hundred stacks
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))

        result = self.expect(3, "check", self.manifest(), "--set", "compute.threads=1024",
                             preexec_fn=limit)
        self.assertIn("[compute] threads: no 1024 worker threads", result.err)

    def test_control_characters_of_the_input_do_not_reach_the_terminal(self):
        result = self.ebb("check", self.manifest(model="a\\u001b[31mb.gguf"))
        self.assertEqual(result.status, 2)
        self.assertNotIn("\x1b", result.err)
        result = self.ebb("check", self.path("no\x1b[31m.toml"))
        self.assertNotIn("\x1b", result.err)

    def test_module_log_lines_are_shown_when_asked_for(self):
        manifest = self.manifest()
        quiet = self.expect(0, "check", manifest)
        self.assertEqual(quiet.err, "")
        self.assertTrue(re.search(r"(?m)^ok$", quiet.out))


if __name__ == "__main__":
    unittest.main()
