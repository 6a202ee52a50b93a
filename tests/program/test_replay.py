"""Recording a run and replaying it: equal counters, tables, exports, and what is refused."""

import csv
import fcntl
import json
import pathlib
import re
import struct
import unittest
import zlib
from xml.etree import ElementTree

from support import DEMO, FIXTURES, ProgramTest

SWAP = '[swap]\nmodule = "{module}"\nslots = {slots}\nstaging = "{staging}"\n'


class Replay(ProgramTest):
    n_recorded = 0

    def record(self, module="swap_lru", staging="demand", slots=64, more="", n=1):
        """The trace of a run: run.trace of the first, beside run.trace.jsonl."""
        name = f"run{self.n_recorded or ''}.trace"
        self.n_recorded += 1
        lines = [{"id": f"r{i}", "tokens": [(j * 37 + i) % 500 + 1 for j in range(300 + 40 * i)],
                  "max_tokens": 24, "ignore_eos": True} for i in range(n)]
        swap = SWAP.format(module=module, staging=staging, slots=slots) + more
        manifest = self.manifest("swap.toml", more=swap, max_sequences=min(n, 2))
        self.expect(0, "run", manifest, "-i", self.batch(lines), "-o", self.path(name + ".jsonl"),
                    "--trace", self.path(name))
        return self.path(name)

    def rows(self, *arguments):
        self.expect(0, "replay", *arguments, "--json", self.path("rows.json"))
        return json.loads((self.folder / "rows.json").read_text())["rows"]

    def test_a_replay_of_a_run_has_its_counters_to_the_integer(self):
        for module, more in (("swap_none", ""), ("swap_lru", "sink_tokens = 8\n"),
                             ("swap_adaptive", "regret = 0.5\nwindow = 4\n"),
                             ("swap_score", "half_life = 8\n")):
            for staging in ("demand", "zero_copy"):
                with self.subTest(module=module, staging=staging):
                    trace = self.record(module, staging, slots=66, more=more, n=3)
                    result = self.expect(0, "replay", trace, "--verify", "--no-bound")
                    self.assertIn("equal to the run", result.out)
                    self.assertEqual(result.err, "")

    def test_forecasts_are_replayed_and_can_be_left_out(self):
        memory = ('[memory]\nmodule = "memory_flash"\ninterval = 6\nbudget = 0.5\n'
                  'recent_tokens = 8\nsink_tokens = 4\n'
                  f'[[memory.scorer]]\nmodule = "{FIXTURES.parent}/policies/scorer_pattern.so"\n')
        for module in ("swap_lru", "swap_adaptive", "swap_score"):
            for staging in ("demand", "zero_copy"):
                with self.subTest(module=module, staging=staging):
                    trace = self.record(module, staging, slots=66, n=2,
                                        more="max_prefetch = 3\n" + memory)
                    result = self.expect(0, "replay", trace, "--verify", "--no-bound")
                    self.assertIn("equal to the run", result.out)
                    row, = self.rows(trace, "--no-bound")
                    # With zero_copy, these two have promoted what a layer selected before already.
                    if staging == "demand" or module == "swap_score":
                        self.assertGreater(row["prefetched"], 0)
                        self.assertGreater(row["prefetch_used"], 0)
                    self.assertEqual(row["prefetched"],
                                     row["prefetch_used"] + row["prefetch_wasted"])
                    for name in ("misses", "prefetched", "evictions"):
                        self.assertEqual(row[name], sum(r[name] for r in row["layers"]))
                    without, = self.rows(trace, "--no-bound", "--no-scores")
                    self.assertEqual(without["prefetched"], 0)
                    self.assertEqual(without["distinct"], row["distinct"])
                    totals = json.loads(self.expect(0, "inspect", trace, "--json").out)["totals"]
                    self.assertGreaterEqual(totals["scorings"], 8)
                    self.assertGreater(totals["kept"], 100)

    def test_inspect_says_how_much_of_a_selection_was_in_the_one_before(self):
        trace = self.record()
        self.rows(trace, "--oracle-general", self.path("all.bin"))
        chosen = {}
        for time, chunk, _, _ in struct.iter_unpack("<IQIq", (self.folder / "all.bin").read_bytes()):
            chosen.setdefault((chunk >> 32 & 0xffff, time), set()).add(chunk & 0xffffffff)
        shown = json.loads(self.expect(0, "inspect", trace, "--json").out)["totals"]
        for layer, share in enumerate(shown["overlap_by_layer"]):
            pairs = [(ids, chosen[layer, time - 1]) for (at, time), ids in chosen.items()
                     if at == layer and (layer, time - 1) in chosen]
            again = sum(len(ids & before) for ids, before in pairs)
            self.assertAlmostEqual(share, again / sum(len(ids) for ids, _ in pairs), places=4)
        self.assertEqual(shown["bytes"], (self.folder / "run.trace").stat().st_size)
        self.assertEqual((shown["sequences"], shown["copies"], shown["copied_tokens"]), (1, 0, 0))
        self.assertRegex(self.expect(0, "inspect", trace).out, r"\n  copies +0\n  copied_tokens +0\n")

    def test_other_counters_than_the_run_s_fail_a_verification(self):
        trace = self.record(staging="zero_copy")
        result = self.expect(1, "replay", trace, "--verify", "--policy",
                             "swap_lru:max_promotions=0")
        self.assertRegex(result.err, r"promotions 0, the run had [1-9]")
        self.assertNotIn("equal", result.out)

    def test_counters_of_a_replay_are_those_of_the_results(self):
        trace = self.record()
        swap = self.results("run.trace.jsonl")[0]["swap"]
        row, = self.rows(trace)
        for name, value in swap.items():
            if name in row and name != "freed":  # freed after the result was written
                self.assertEqual(row[name], value, name)

    def test_no_policy_is_below_the_bound_and_more_slots_need_fewer_misses(self):
        trace = self.record(n=2)
        for staging in ("demand", "zero_copy"):
            rows = self.rows(trace, "--staging", staging, "--slots", "64,70,80,100,200",
                             "--policy", "swap_lru", "--policy", "swap_adaptive", "--policy",
                             "swap_score", "--policy", "swap_none")
            self.assertEqual(len(rows), 20)
            for row in rows:
                self.assertGreaterEqual(row["misses"], row["bound"])
                self.assertEqual(row["hits"] + row["misses"], row["distinct"])
            if staging == "demand":
                lru = [row["misses"] for row in rows if row["policy"] == "swap_lru"]
                self.assertEqual(lru, sorted(lru, reverse=True))
                for row in rows:
                    if row["policy"] == "swap_adaptive":
                        same = next(r for r in rows if r["policy"] == "swap_lru"
                                    and r["slots"] == row["slots"])
                        self.assertLessEqual(row["misses"], 1.01 * same["misses"])
            # With slots for all chunks nothing is swapped.
            self.assertTrue(all(row["misses"] == 0 for row in rows if row["slots"] == 200))

    def test_the_table_and_the_csv_say_the_same(self):
        trace = self.record()
        result = self.expect(0, "replay", trace, "--slots", "64,80", "--policy", "swap_lru",
                             "--policy", "swap_score:half_life=8,recency=3", "--csv",
                             self.path("rows.csv"))
        with open(self.folder / "rows.csv", newline="") as file:
            rows = list(csv.DictReader(file))
        self.assertEqual(len(rows), 4)
        self.assertEqual(rows[1]["policy"], "swap_score:half_life=8,recency=3")
        for row in rows:
            self.assertIn(row["misses"], result.out)

    def test_the_plot_has_a_line_per_policy_and_the_bound_s(self):
        trace = self.record()
        arguments = ("replay", trace, "--slots", "64,70,80", "--policy", "swap_lru", "--policy",
                     "swap_score:half_life=8", "--plot", self.path("curve.svg"))
        self.expect(0, *arguments)
        svg = "{http://www.w3.org/2000/svg}"
        chart = ElementTree.parse(self.folder / "curve.svg").getroot().find(f"{svg}svg")
        lines = [p for p in chart.findall(f"{svg}path") if "data" in p.get("class")]
        self.assertEqual(len(lines), 3)
        self.assertTrue(all(len(re.findall("[ML]", line.get("d"))) == 3 for line in lines))
        texts = [t.text for t in chart.findall(f"{svg}text")]
        for text in ("swap_lru", "swap_score:half_life=8", "Belady's bound", "slots per layer"):
            self.assertIn(text, texts)
        self.expect(0, *arguments, "--no-bound")
        chart = ElementTree.parse(self.folder / "curve.svg").getroot().find(f"{svg}svg")
        self.assertNotIn("Belady's bound", [t.text for t in chart.findall(f"{svg}text")])

    def test_the_export_has_24_bytes_a_selection_and_knows_the_next_one(self):
        trace = self.record(n=2)
        out = self.path("run.oracleGeneral.bin")
        row, = self.rows(trace, "--oracle-general", out)
        data = (self.folder / "run.oracleGeneral.bin").read_bytes()
        records = list(struct.iter_unpack("<IQIq", data))
        self.assertEqual(len(records), row["distinct"])
        following = {}
        for number, (time, chunk, size, next_access) in reversed(list(enumerate(records, 1))):
            self.assertEqual(next_access, following.get(chunk, -1))
            following[chunk] = number
        self.assertEqual([r[0] for r in records], sorted(r[0] for r in records))
        self.assertEqual(len({r[2] for r in records}), 1)

    def test_births_are_exported_before_what_their_step_selects(self):
        trace = self.record(n=2)
        out = self.path("all.bin")
        row, = self.rows(trace, "--oracle-general", out, "--births")
        records = list(struct.iter_unpack("<IQIq", (self.folder / "all.bin").read_bytes()))
        self.assertEqual(len(records), row["distinct"] + row["stores"])
        born, chosen = {}, {}
        for time, chunk, _, _ in records:
            if chunk not in born:
                born[chunk] = time
                self.assertNotIn(time, chosen.get(chunk >> 32, ()))  # not behind a selection
            else:
                chosen.setdefault(chunk >> 32, set()).add(time)
        self.assertEqual(len(born), row["stores"])
        # Chunks 0..n-1 of each sequence and layer, in order.
        for cache in {chunk >> 32 for chunk in born}:
            ids = [chunk & 0xffffffff for chunk in born if chunk >> 32 == cache]
            self.assertEqual(ids, list(range(len(ids))))
        self.rows(trace, "--oracle-general", out)
        without = {r[1] for r in struct.iter_unpack("<IQIq", (self.folder / "all.bin").read_bytes())}
        self.assertLess(len(without), len(born))

    def test_inspect_shows_header_and_totals(self):
        trace = self.record(slots=66, more="sink_tokens = 8\n")
        text = self.expect(0, "inspect", trace).out
        for word in ("swap_lru", "demand", "sink_tokens = 8", "selections", "misses"):
            self.assertIn(word, text)
        shown = json.loads(self.expect(0, "inspect", trace, "--json").out)
        self.assertEqual(shown["slots"], 66)
        self.assertEqual(shown["totals"]["sequences"], 1)
        self.assertEqual(shown["totals"]["tokens"], 300 + 23)
        self.assertEqual(shown["counters"]["misses"],
                         self.results("run.trace.jsonl")[0]["swap"]["misses"])
        self.assertEqual(shown["torn"], "")

    def test_a_torn_trace_is_refused_and_can_be_recovered(self):
        trace = self.record()
        data = (self.folder / "run.trace").read_bytes()
        cut = self.write("cut.trace", data[:-3])
        self.expect_refused("at byte ", "replay", cut)
        # One block was all there was.
        result = self.expect(0, "replay", cut, "--recover")
        self.assertIn("at byte ", result.err)
        self.assertIn("torn", self.expect(0, "inspect", cut).out)
        refused = self.expect(2, "replay", cut, "--recover", "--verify")
        self.assertIn("--verify", refused.err)
        self.assertEqual(refused.out, "")

    def test_what_is_no_trace_is_refused(self):
        self.expect_refused("no trace", "replay", self.write("text", "a text, and a longer one"))
        self.expect_refused("cannot open", "replay", self.path("none.trace"))
        self.expect_refused("no trace", "replay", DEMO / "ds4-mini-q8_0.gguf")
        self.expect_refused("not a regular file", "replay", self.path(""))
        trace = self.record()
        data = bytearray((self.folder / "run.trace").read_bytes())
        data[40] ^= 1
        self.expect_refused("CRC", "replay", self.write("bad", bytes(data)))
        # The CRCs are those of zlib.
        size = struct.unpack_from("<I", data, 12)[0]
        data[40] ^= 1
        self.assertEqual(zlib.crc32(data[:size - 4]), struct.unpack_from("<I", data, size - 4)[0])
        # Longer than any run: refused before tables of that size are made.
        struct.pack_into("<Q", data, 36, (1 << 24) + 1)
        struct.pack_into("<I", data, size - 4, zlib.crc32(data[:size - 4]))
        self.expect_refused("a size in the header is out of range", "replay",
                            self.write("long", bytes(data)))

    def test_what_is_wrong_on_the_command_line_is_refused(self):
        trace = self.record()
        self.expect_refused("swap_best", "replay", trace, "--policy", "swap_best")
        self.expect_refused("comm_self", "replay", trace, "--policy", "comm_self")
        self.expect_refused("half_live", "replay", trace, "--policy", "swap_score:half_live=3")
        self.expect_refused("slots = 63", "replay", trace, "--slots", "63")
        for flag, value in (("--slots", "0"), ("--slots", "many"), ("--staging", "resident"),
                            ("--policy", "")):
            self.assertEqual(self.ebb("replay", trace, flag, value).status, 2, (flag, value))
        self.expect_refused("--verify", "replay", trace, "--verify", "--slots", "80")
        self.expect_refused("cannot open", "replay", trace, "--json", self.path("no/folder.json"))
        self.expect_refused("cannot open", "replay", trace, "--plot", self.path("no/folder.svg"))
        self.expect_refused(".svg or .html", "replay", trace, "--plot", self.path("plot.png"))
        for arguments in (("--verify", "--no-scores"), ("--spread", "2")):
            self.assertEqual(self.expect(2, "replay", trace, *arguments).out, "")

    def test_an_output_that_cannot_be_is_refused_before_anything_is_written(self):
        trace = self.record()
        data = (self.folder / "run.trace").read_bytes()
        before = sorted(p.name for p in self.folder.iterdir())
        (self.folder / "link").symlink_to(trace)
        for flag in ("--json", "--csv", "--oracle-general", "--selections"):
            for bad, says in ((trace, "named by TRACE"), (self.path("./run.trace"), "named by"),
                              (self.path("link"), "named by TRACE"),
                              (self.path("no/x"), "cannot open"), ("/dev/full", "not a regular")):
                others = ["--plot", self.path("x.svg"), "--csv", self.path("x.csv")]
                others = others[:2] if flag == "--csv" else others
                self.expect_refused(says, "replay", trace, *others, flag, bad)
        self.expect_refused("named by --json and by --csv", "replay", trace, "--json",
                            self.path("a"), "--csv", self.path("a"))
        (self.folder / "link").unlink()
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), before)
        self.assertEqual((self.folder / "run.trace").read_bytes(), data)

    def test_selections_have_the_size_that_can_be_read_again(self):
        trace = self.record()
        out = self.path("s.selections")
        self.expect(0, "replay", trace, "--no-bound", "--selections", out, "--spread", "2")
        n_layers, n_steps, top_k = struct.unpack_from("<8xIII", (self.folder / "s.selections")
                                                      .read_bytes())
        self.assertEqual((n_steps, top_k), (2 * 23 - 2, 128))
        size = 20 + 4 * n_layers * n_steps * (top_k + 1)
        self.assertEqual((self.folder / "s.selections").stat().st_size, size)

    def test_a_run_that_swaps_nothing_has_no_trace(self):
        manifest = self.manifest()
        batch = self.batch([{"id": "a", "tokens": [1, 2, 3], "max_tokens": 2}])
        self.expect_refused("nothing to trace", "run", manifest, "-i", batch, "-o",
                            self.path("r.jsonl"), "--trace", self.path("a.trace"))
        swapping = self.manifest("s.toml", more=SWAP.format(module="swap_lru", slots=64,
                                                            staging="demand"))
        self.expect_refused("cannot open", "run", swapping, "-i", batch, "-o",
                            self.path("s.jsonl"), "--trace", self.path("no/folder.trace"))
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()),
                         ["m.toml", "p.jsonl", "s.toml"])

    def test_a_trace_is_written_over_nothing_but_a_trace(self):
        swapping = self.manifest("s.toml", more=SWAP.format(module="swap_lru", slots=64,
                                                            staging="demand"))
        batch = self.batch([{"id": "a", "tokens": [1, 2, 3], "max_tokens": 2}])
        output = self.path("s.jsonl")
        for trace, says in ((batch, "named by --input and by --trace"),
                            (output, "named by --output and by --trace"),
                            (swapping, "named by MANIFEST and by --trace"),
                            (output + ".manifest.toml",
                             "named by the record of the manifest and by --trace"),
                            (self.write("mine", "mine"), "no trace"), ("/dev/full", "no trace")):
            kept = None if trace == "/dev/full" or trace.startswith(output) else pathlib.Path(trace).read_text()
            self.expect_refused(says, "run", swapping, "-i", batch, "-o", output, "--trace", trace)
            if kept is not None:
                self.assertEqual(pathlib.Path(trace).read_text(), kept)
            self.assertEqual(sorted(path.name for path in self.folder.iterdir() if path.name != "mine"),
                             ["p.jsonl", "s.toml"])
        for _ in range(2):
            self.expect(0, "run", swapping, "-i", batch, "-o", output, "--trace",
                        self.path("a.trace"))
            pathlib.Path(output).unlink()
        self.expect(0, "inspect", self.path("a.trace"))
        before = (self.folder / "a.trace").read_bytes()
        with open(self.path("a.trace")) as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.expect_refused("a.trace: another process is writing it", "run", swapping, "-i", batch,
                                "-o", output, "--trace", self.path("a.trace"))
        self.assertEqual((self.folder / "a.trace").read_bytes(), before)


if __name__ == "__main__":
    unittest.main()
