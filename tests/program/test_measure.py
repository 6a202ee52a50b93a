"""tools/measure_*.py: that they run, and how they end where they cannot."""

import re
import subprocess
import sys
import unittest

from support import DEMO, EBB, ROOT, ProgramTest

SMALL = {
    "measure_prefixes.py": ("--characters", "1200", "--questions", "2", "--new", "2", "--rounds", "1"),
    "measure_batch.py": ("--requests", "4", "--sequences", "1,2", "--new", "2", "--rounds", "2"),
    "measure_speed.py": ("--prefill", "8", "--decode", "16", "--new", "3", "--rounds", "1"),
}


class Measure(ProgramTest):
    def measure(self, script, *arguments, status=2, program=EBB):
        done = subprocess.run([sys.executable, "-B", ROOT / "tools" / script,
                               *map(str, arguments), "--program", program],
                              capture_output=True, text=True, timeout=120, cwd=ROOT)
        self.assertEqual(done.returncode, status, done.stderr)
        if status != 0:
            self.assertEqual(done.stdout, "")
            self.assertNotIn("Traceback", done.stderr)
        return done.stdout if status == 0 else done.stderr

    def test_they_print_a_row_a_setting(self):
        rows = {}
        for script, small in SMALL.items():
            rows[script] = self.measure(script, self.manifest(max_context=1024), *small, status=0)
        fed = re.findall(r"(?m)^ +([01]) +(\d+) ", rows["measure_prefixes.py"])
        self.assertEqual([held for held, _ in fed], ["0", "1"])
        self.assertLess(int(fed[1][1]), 0.6 * int(fed[0][1]))
        self.assertEqual(re.findall(r"(?m)^ +(\d+) +\d+\.\d ", rows["measure_batch.py"]), ["1", "2"])
        self.assertEqual(re.findall(r"(?m)^(prefill|decode) +(\d+) ", rows["measure_speed.py"]),
                         [("prefill", "8"), ("decode", "16")])
        weights = self.measure("measure_speed.py", self.manifest(), *SMALL["measure_speed.py"],
                               "--model", DEMO / "ds4-mini-q8_0.gguf", status=0)
        self.assertRegex(weights, r"(?m)^decode +16 .* \d+\.\d\d *$")

    def test_what_cannot_be_measured_is_told_in_a_line(self):
        for script, small in SMALL.items():
            manifest = self.manifest()
            for program, says in ((self.path("none"), "none: No such file"),
                                  ("/bin/true", "no ebb")):
                err = self.measure(script, manifest, *small, program=program)
                self.assertRegex(err, rf"\A{script}: --program .*{says}.*\n\Z")
            self.assertIn("no such file", self.measure(script, self.path("none.toml"), *small))
            for flag in ("--rounds", "--new"):
                for value in ("0", "-1", "x", "1.5", "", "9" * 20):
                    self.assertIn("want 1..16777216",
                                  self.measure(script, manifest, f"{flag}={value}"))

    def test_what_each_takes_is_looked_at(self):
        bad = self.write("bad.txt", b"\xff\xfe")
        for script, arguments, says in (
                ("measure_prefixes.py", ("--text", self.path("none.txt")), "none.txt: No such file"),
                ("measure_prefixes.py", ("--text", bad), "bad.txt: no UTF-8"),
                ("measure_prefixes.py", ("--characters", "9999999"), "has"),
                ("measure_prefixes.py", ("--questions", "0"), "want 1.."),
                ("measure_prefixes.py", ("--documents", "0"), "want 1.."),
                ("measure_prefixes.py", ("--held", "0"), "want 1..1024"),
                ("measure_batch.py", ("--sequences", "1,,2"), "want 1.."),
                ("measure_batch.py", ("--prompt", "8"), "want 2 numbers"),
                ("measure_batch.py", ("--prompt", "9,8"), "the smaller one first"),
                ("measure_batch.py", ("--requests", "4"), "--rounds 5: there are 4"),
                ("measure_speed.py", ("--prefill", "", "--decode", ""), "nothing to measure"),
                ("measure_speed.py", ("--prefill", "1K"), "want 1.."),
                ("measure_speed.py", (*SMALL["measure_speed.py"], "--model", bad), "--model")):
            self.assertIn(says, self.measure(script, self.manifest(), *arguments))


if __name__ == "__main__":
    unittest.main()
