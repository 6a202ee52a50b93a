"""ebb bench: that its rows are whole, consistent with one another, and plausible."""

import csv
import json
import re
import signal
import subprocess
import time
import unittest
from xml.etree import ElementTree

from support import EBB, ProgramTest

SYNTHETIC = """
[engine]
max_context = {max_context}
max_sequences = 4
prefill_chunk = 64
seed = 7
[loader]
module = "loader_synthetic"
[compute]
module = "compute_cpu"
threads = 1
[comm]
module = "comm_self"
[attention]
module = "attention_csa"
kv_format = "fp8"
[decoder]
module = "decoder_deepseek4"
"""

PROVENANCE = ("device", "precision", "model", "source", "manifest", "seed", "build", "date")


class Bench(ProgramTest):
    def synthetic(self, max_context=1024):
        return self.write("m.toml", SYNTHETIC.format(max_context=max_context))

    def bench(self, *arguments):
        """Rows of the JSON file, after those of the CSV file were found to say the same."""
        result = self.expect(0, "bench", self.synthetic(), "--csv", self.path("b.csv"), "--json",
                             self.path("b.json"), *arguments)
        self.table = result.out
        report = json.loads((self.folder / "b.json").read_text("utf-8"))
        self.assertTrue(report["complete"])
        with open(self.path("b.csv"), newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
        self.assertEqual(len(lines), len(report["rows"]))
        for line, row in zip(lines, report["rows"]):
            self.assertEqual(list(line), list(row))
            for key, value in row.items():
                if value is None:
                    self.assertEqual(line[key], "", key)
                elif isinstance(value, str):
                    self.assertEqual(line[key], value, key)
                else:
                    self.assertEqual(float(line[key]), value, key)
        return report["rows"]

    def check_numbers(self, row):
        self.assertGreater(row["ms_median"], 0)
        self.assertLessEqual(row["ms_p10"], row["ms_median"])
        self.assertLessEqual(row["ms_median"], row["ms_p90"])
        self.assertGreater(row["tok_s"], 0)
        self.assertGreater(row["launches"], 10)
        self.assertGreater(row["device_bytes_planned"], 1 << 16)
        self.assertIsNone(row["device_bytes_taken"])  # no driver counts the CPU's memory
        for key in PROVENANCE:
            self.assertNotIn(row[key], (None, ""), key)
        self.assertEqual(row["seed"], 7)
        self.assertEqual(row["precision"], "exact")
        self.assertRegex(row["date"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ$")
        self.assertRegex(row["build"], r"^\d+\.\d+\.\d+-[0-9a-f]{16}$")

    def test_rows_of_fed_contexts(self):
        rows = self.bench("--frontiers", "64,300", "--new", "5", "--batch", "1,4", "--rounds", "2")
        self.assertEqual([(r["phase"], r["frontier"], r["batch"]) for r in rows],
                         [(p, f, b) for f in (64, 300)
                          for p, b in (("prefill", 1), ("decode", 1), ("decode", 4))])
        for row in rows:
            self.check_numbers(row)
            self.assertEqual(row["kv"], "model")
            self.assertEqual(row["n_samples"], 2 if row["phase"] == "prefill" else 10)
        first, second = rows[0], rows[3]
        self.assertEqual((first["from"], first["to"]), (0, 64))
        self.assertEqual((second["from"], second["to"]), (64 + 2 * 6, 300))
        self.assertAlmostEqual(first["tok_s_from_0"], first["tok_s"])
        self.assertAlmostEqual(second["tok_s_from_0"] * (first["ms_median"] + second["ms_median"]),
                               (64 + 300 - 76) * 1e3, delta=1)
        self.assertIn("decode", self.table)
        self.assertIn(first["build"], self.table)

    def test_bytes_and_rates_of_decode_agree(self):
        rows = [r for r in self.bench("--frontiers", "64,300", "--new", "3", "--batch", "1,4")
                if r["phase"] == "decode"]
        for row in rows:
            moved = row["weight_bytes_per_step"] + row["kv_bytes_per_step"]
            self.assertAlmostEqual(row["gb_s"] / (moved / row["ms_median"] / 1e6), 1, places=6)
            self.assertAlmostEqual(row["share_of_read_rate"] * row["read_rate_gb_s"] / row["gb_s"],
                                   1, places=6)
            # A small model sits in caches, and the rate may be measured while others run; a wrong
            # unit would be a thousand.
            self.assertLess(row["share_of_read_rate"], 100)
            self.assertEqual(row["weight_bytes_are"], "exact" if row["batch"] == 1 else "expected")
        one, four = rows[0], rows[1]
        # Four rows of 2 in 8 experts use 1 - 0.75^4 = 0.684 of them instead of 0.25.
        self.assertGreater(four["weight_bytes_per_step"], one["weight_bytes_per_step"])
        self.assertLess(four["weight_bytes_per_step"], 2.74 * one["weight_bytes_per_step"])
        # Six layers with windows of 8 rows. At 64 to 67 tokens the three layers of ratio 4 choose
        # 8 rows by the keys of all (512 bytes each), and those of ratio 128 have none yet.
        row_bytes = 192 + 2 * 64 + 3 + 5
        positions = range(one["from"], one["to"])
        n_keys = sum((p + 1) // 4 for p in positions) / len(positions)
        self.assertAlmostEqual(one["kv_bytes_per_step"],
                               6 * 8 * row_bytes + 3 * (8 * row_bytes + n_keys * 512), delta=1)
        self.assertGreater(rows[2]["kv_bytes_per_step"], one["kv_bytes_per_step"])

    def test_the_plot_shows_the_rows(self):
        rows = self.bench("--frontiers", "64,128,256", "--new", "2", "--batch", "1,2", "--plot",
                          self.path("b.svg"))
        svg = "{http://www.w3.org/2000/svg}"
        decode, prefill = ElementTree.parse(self.folder / "b.svg").getroot().findall(f"{svg}svg")
        lines = [[(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", p.get("d"))]
                 for chart in (decode, prefill) for p in chart.findall(f"{svg}path")
                 if "data" in p.get("class")]
        self.assertEqual([len(line) for line in lines], [3, 3, 3])
        # Contexts that double are evenly spaced; a higher speed is higher up.
        for line, (phase, batch) in zip(lines, (("decode", 1), ("decode", 2), ("prefill", 1))):
            self.assertAlmostEqual(line[1][0] - line[0][0], line[2][0] - line[1][0], delta=0.2)
            speeds = [r["tok_s"] for r in rows if (r["phase"], r["batch"]) == (phase, batch)]
            for i, j in ((0, 1), (1, 2), (0, 2)):
                if abs(line[i][1] - line[j][1]) > 0.1:  # else the drawing is too coarse to tell
                    self.assertEqual(line[i][1] > line[j][1], speeds[i] < speeds[j])

    def test_synthetic_contexts_say_so_in_every_row(self):
        rows = self.bench("--frontiers", "512,520", "--new", "3", "--batch", "2", "--fill",
                          "synthetic")
        self.assertEqual([(r["phase"], r["from"], r["to"]) for r in rows],
                         [("prefill", 448, 512), ("decode", 513, 516),
                          ("prefill", 456, 520), ("decode", 521, 524)])
        for row in rows:
            self.check_numbers(row)
            self.assertEqual(row["kv"], "synthetic")
            self.assertIsNone(row["tok_s_from_0"])

    def test_without_room_for_the_buffer_there_is_no_share(self):
        result = self.expect(0, "bench", self.synthetic(), "--frontiers", "16", "--new", "1",
                             "--json", self.path("b.json"), "--set", "compute.memory_limit=64MiB")
        self.assertIn("warning", result.err)
        row = json.loads((self.folder / "b.json").read_text())["rows"][1]
        self.assertIsNone(row["share_of_read_rate"])
        self.assertIsNone(row["read_rate_gb_s"])
        self.assertGreater(row["gb_s"], 0)

    def test_what_cannot_be_measured_is_refused(self):
        manifest = self.synthetic()
        for says, arguments in (
                ("--frontiers", ["--frontiers", "2X"]),
                ("max_context = 1034", ["--frontiers", "1K", "--new", "9"]),
                ("--batch", ["--batch", "0"]),
                ("max_sequences allows 4", ["--batch", "8"]),
                ("leave nothing to feed", ["--frontiers", "64,65"]),
                ("cannot open", ["--frontiers", "64", "--csv", self.path("none/b.csv")]),
                ("cannot open", ["--frontiers", "64", "--plot", self.path("none/b.svg")]),
                (".svg or .html", ["--frontiers", "64", "--plot", self.path("b.png")]),
                ("named by --csv and by --json", ["--csv", self.path("b"), "--json",
                                                  self.path("../" + self.folder.name + "/b")]),
                ("named by MANIFEST and by --csv", ["--csv", manifest])):
            self.expect_refused(says, "bench", manifest, *arguments)
        self.expect(2, "bench", manifest, "--fill", "sand")
        self.expect(2, "bench", manifest, "--new", "0")
        self.expect_refused("memory_limit", "bench", manifest, "--set", "compute.memory_limit=1000",
                            status=3)

    def test_an_interrupt_reports_what_was_finished(self):
        process = subprocess.Popen(
            [EBB, "bench", self.synthetic(65536), "--frontiers", "16,60000",
             "--new", "1", "--json", self.path("b.json")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.kill)
        line = process.stderr.readline()
        while "decode" not in line:
            self.assertNotEqual(line, "", "it ended before it could be stopped")
            line = process.stderr.readline()
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("interrupted", err)
        report = json.loads((self.folder / "b.json").read_text())
        self.assertFalse(report["complete"])
        self.assertEqual([(r["phase"], r["frontier"]) for r in report["rows"]],
                         [("prefill", 16), ("decode", 16)])
        self.assertIn("decode", out)


if __name__ == "__main__":
    unittest.main()
