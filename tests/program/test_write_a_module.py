"""Builds the module of docs/write-a-module.md from the page itself and runs with it."""

import os
import re
import subprocess
import unittest

import support


class WriteAModule(support.ProgramTest):
    def build(self, source):
        for command in (
            [os.environ["EBB_CMAKE"], "-S", source, "-B", source / "build", "-G", "Ninja",
             f"-DEBB_SOURCE={support.ROOT}", f"-DCMAKE_CXX_COMPILER={os.environ['EBB_CXX']}",
             f"-DCMAKE_BUILD_TYPE={os.environ['EBB_BUILD_TYPE']}",
             f"-DEBB_SANITIZE={os.environ['EBB_SANITIZE']}"],
            [os.environ["EBB_CMAKE"], "--build", source / "build"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return source / "build" / "bin" / "modules" / "comm_counting.so"

    def test_the_page_s_module_builds_loads_and_counts(self):
        page = (support.ROOT / "docs" / "write-a-module.md").read_text()
        files = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```", page, re.DOTALL))
        self.assertEqual(sorted(files), ["CMakeLists.txt", "module.cpp", "options.toml"])
        source = self.folder / "comm_counting"
        source.mkdir()
        for name, text in files.items():
            (source / name).write_text(text)
        module = self.build(source)

        def check(*arguments):
            return subprocess.run(
                [support.EBB, "check", support.DEMO / "demo.toml", "-v",
                 "--set", f"comm.module={module}", *arguments], capture_output=True, text=True)

        done = check()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("comm_counting 1.0", re.sub(r" +", " ", done.stdout))
        self.assertRegex(done.stderr, r"comm_counting.*: [1-9]\d* bytes in [1-9]\d* calls")
        self.assertNotIn("calls", check("--set", "comm.report=false").stderr)
        done = check("--set", "comm.colour=1")
        self.assertEqual(done.returncode, 2)
        self.assertIn("colour", done.stderr)


if __name__ == "__main__":
    unittest.main()
