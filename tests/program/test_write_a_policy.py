"""Builds the policy of docs/write-a-policy.md from the page itself, replays a run and runs with it."""

import json
import unittest

import support

SWAP = '[swap]\nmodule = "{module}"\nslots = 64\nstaging = "demand"\n'


class WriteAPolicy(support.PageTest):
    def test_the_page_s_policy_builds_replays_and_runs(self):
        module = self.build_module("write-a-policy.md", "swap_clock")
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
