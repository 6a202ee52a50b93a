"""Builds the module of docs/write-a-module.md from the page itself and runs with it."""

import re
import subprocess
import unittest

import support


class WriteAModule(support.PageTest):
    def test_the_page_s_module_builds_loads_and_counts(self):
        module = self.build_module("write-a-module.md", "comm_counting")

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
