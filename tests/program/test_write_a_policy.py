"""Builds the policy of docs/write-a-policy.md from the page itself, replays a run and runs with it."""

import json
import os
import re
import subprocess
import unittest

import support

SWAP = '[swap]\nmodule = "{module}"\nslots = 64\nstaging = "demand"\n'


class WriteAPolicy(support.ProgramTest):
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
        return source / "build" / "bin" / "modules" / "swap_clock.so"

    def test_the_page_s_policy_builds_replays_and_runs(self):
        page = (support.ROOT / "docs" / "write-a-policy.md").read_text()
        files = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```", page, re.DOTALL))
        self.assertEqual(sorted(files), ["CMakeLists.txt", "module.cpp", "options.toml"])
        source = self.folder / "swap_clock"
        source.mkdir()
        for name, text in files.items():
            (source / name).write_text(text)
        module = self.build(source)

        batch = self.batch([{"id": "a", "tokens": [i * 37 % 500 + 1 for i in range(400)],
                             "max_tokens": 30, "ignore_eos": True}])
        trace = self.path("run.trace")
        lru = self.manifest("lru.toml", more=SWAP.format(module="swap_lru"))
        clock = self.manifest("clock.toml", more=SWAP.format(module=module) + "chances = 2\n")
        self.expect(0, "run", lru, "-i", batch, "-o", self.path("lru.jsonl"), "--trace", trace)
        report = self.path("report.json")
        self.expect(0, "replay", trace, "--policy", "swap_lru", "--policy", module,
                    "--policy", f"{module}:chances=2", "--slots", "64,80", "--json", report)
        rows = json.loads((self.folder / "report.json").read_text())["rows"]
        self.assertEqual(len(rows), 6)
        for row in rows:
            self.assertEqual(row["refused"], 0)
            self.assertGreaterEqual(row["misses"], row["bound"])
        # The replay of another policy is what a run under it does.
        clock_trace = self.path("clock.trace")
        self.expect(0, "run", clock, "-i", batch, "-o", self.path("clock.jsonl"), "--trace",
                    clock_trace)
        verified = self.expect(0, "replay", clock_trace, "--verify")
        self.assertIn("equal to the run", verified.out)
        self.assertEqual(self.results("clock.jsonl")[0]["swap"]["misses"],
                         next(row for row in rows if row["policy"].endswith("chances=2")
                              and row["slots"] == 64)["misses"])
        self.assertEqual(self.results("clock.jsonl")[0]["tokens"],
                         self.results("lru.jsonl")[0]["tokens"])
        refused = self.ebb("replay", trace, "--policy", f"{module}:chances=0")
        self.assertEqual(refused.status, 2)
        self.assertIn("chances = 0", refused.err)


if __name__ == "__main__":
    unittest.main()
