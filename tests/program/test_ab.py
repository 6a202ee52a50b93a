"""ebb ab: its report in three forms, what it finds and what it refuses to claim."""

import json
import math
import resource
import signal
import statistics
import subprocess
import unittest

from support import EBB, FIXTURES, ProgramTest

# Two layers that select 8 chunks: quick, whatever else the machine does.
SMALL = """
[engine]
max_context = {max_context}
max_sequences = {max_sequences}
prefill_chunk = 64
seed = 7
[loader]
module = "loader_synthetic"
n_layers = 2
ratios = [4, 4]
context_length = 16777216
[compute]
module = "compute_cpu"
threads = 1
[comm]
module = "comm_self"
[attention]
module = "attention_csa"
[decoder]
module = "decoder_deepseek4"
"""
SWAP = '[swap]\nmodule = "{module}"\nslots = {slots}\nstaging = "{staging}"\n'


def student_of_3(p):
    """The p-th quantile of Student's t with 3 degrees of freedom, whose distribution is closed."""
    low, high = 0, 1000
    while high - low > 1e-12 * high:
        t = (low + high) / 2
        x = t / 3 ** 0.5
        low, high = ((t, high) if 0.5 + (x / (1 + x * x) + math.atan(x)) / math.pi < p else
                     (low, t))
    return low


class Ab(ProgramTest):
    def small(self, name="m.toml", max_context=256, max_sequences=1, more=""):
        return self.write(name, SMALL.format(max_context=max_context,
                                             max_sequences=max_sequences) + more)

    def prompts(self, n=2, n_tokens=60, max_tokens=12, **more):
        return self.batch([{"id": f"p{i}", "tokens": [(j * 37 + i) % 300 + 1
                                                      for j in range(n_tokens + 20 * i)],
                            "max_tokens": max_tokens, "ignore_eos": True, **more}
                           for i in range(n)])

    def swapping(self, name="s.toml", module="swap_lru", staging="demand", slots=8, **more):
        return self.small(name, more=SWAP.format(module=module, staging=staging, slots=slots),
                             **more)

    def ab(self, *arguments, status=0, output="report", **more):
        """The report that `ebb ab` leaves."""
        self.done = self.expect(status, "ab", *arguments, "-o", self.path(output), **more)
        with open(self.folder / output / "report.json", encoding="utf-8") as file:
            return json.load(file)

    def text(self, form, output="report"):
        return (self.folder / output / f"report.{form}").read_text("utf-8")

    def test_the_report_is_whole_and_its_forms_agree(self):
        report = self.ab(self.swapping(), "--a", "swap.module=swap_lru", "--b",
                         "swap.module=swap_adaptive", "--set", "swap.slots=9", "-i",
                         self.prompts(), "--rounds", "3")
        self.assertEqual(sorted(p.name for p in (self.folder / "report").iterdir()),
                         ["a.manifest.toml", "a.trace", "b.manifest.toml", "b.trace",
                          "report.html", "report.json", "report.md"])
        self.assertEqual([p.name for p in self.folder.iterdir() if p.name.endswith(".tmp")], [])
        self.assertTrue(report["complete"])
        self.assertEqual(report["rounds"], 3)
        self.assertEqual(report["engines"], "new for each turn")
        self.assertEqual([(p["round"], p["side"]) for p in report["passes"]],
                         [(0, "A"), (0, "B"), (1, "A"), (1, "B"), (2, "B"), (2, "A"), (3, "B"),
                          (3, "A")])
        # What both sides share is on top of the module that each names.
        self.assertEqual([report["traces"][side]["slots"] for side in "AB"], [9, 9])
        self.assertIn({"key": "swap.module", "a": '"swap_lru"', "b": '"swap_adaptive"'},
                      report["differences"])
        self.assertEqual(report["sides"]["A"]["label"], "A: swap_lru")
        for token in report["tokens"]:
            self.assertTrue(token["equal"] and token["a_repeats"] and token["b_repeats"])
            self.assertEqual(token["a"], token["b"])
        page, markdown = self.text("html"), self.text("md")
        for text in (page, markdown, self.done.out):
            self.assertIn("swap_lru against swap_adaptive", text)
            for measure in report["measures"]:
                self.assertIn(measure["measure"], text)
            for sentence in report["verdict"]:
                self.assertIn(sentence, text)
        misses = f"{report['sides']['A']['swap']['misses']:,}"
        self.assertIn(misses, page)
        self.assertIn(misses, markdown)
        self.assertEqual(page.count("<svg"), 7)
        for word in ("<script", "http://", "https://", "@import", "url("):
            self.assertNotIn(word, page.replace("http://www.w3.org/2000/svg", ""))

    def test_ratios_and_intervals_follow_from_the_samples(self):
        report = self.ab(self.small(), "-i", self.prompts(), "--rounds", "4")
        samples = [s for s in report["samples"] if s["round"] > 0]
        self.assertEqual(len(samples), 4 * 2 * 2)
        for measure, value in (
                ("decode", lambda s: (s["completion_tokens"] - 1) / s["decode_s"]),
                ("median token", lambda s: statistics.median(s["token_ms"])),
                ("prefill", lambda s: s["prefill_tokens_per_s"])):
            found = next(m for m in report["measures"] if m["measure"] == measure)
            logs = []
            for number in range(1, 5):
                by_side = {side: [math.log(value(s)) for s in samples
                                  if s["round"] == number and s["side"] == side] for side in "AB"}
                logs.append(statistics.mean(by_side["B"]) - statistics.mean(by_side["A"]))
            mean = statistics.mean(logs)
            half = student_of_3(1 - 0.05 / 4 / 2) * statistics.stdev(logs) / 2  # of four together
            self.assertEqual(found["confidence"], 1 - 0.05 / 4)
            self.assertAlmostEqual(found["ratio"] / math.exp(mean), 1, places=9)
            self.assertAlmostEqual(found["interval"][0] / math.exp(mean - half), 1, places=6)
            self.assertAlmostEqual(found["interval"][1] / math.exp(mean + half), 1, places=6)
            self.assertAlmostEqual(found["b"] / found["a"], found["ratio"], places=9)
        for sample in samples:
            self.assertEqual(len(sample["token_ms"]), sample["completion_tokens"] - 1)
            self.assertAlmostEqual(sum(sample["token_ms"]) / 1e3 / sample["decode_s"], 1, delta=0.1)

    def test_a_manifest_against_itself_says_so(self):
        report = self.ab(self.small("mine.toml"), "-i", self.prompts(1), "--rounds", "2")
        self.assertEqual(report["differences"], [])
        self.assertIn("mine against itself", self.done.out)
        self.assertIn("a comparison of A with itself", self.text("html"))
        self.assertIn("Neither side swaps", self.text("html"))
        self.assertEqual(report["traces"], {"A": None, "B": None})

    def test_one_round_supports_no_claim(self):
        report = self.ab(self.small(), "-i", self.prompts(1), "--rounds", "1")
        self.assertEqual([m["interval"] for m in report["measures"]], [None] * 4)
        self.assertEqual(len(report["verdict"]), 1)
        for text in (self.text("html"), self.text("md"), self.done.out):
            self.assertIn("One round supports no claim", text)
            self.assertNotRegex(text, "(faster|slower|longer|shorter) than")
        self.assertNotIn("with intervals that hold", self.text("html"))

    def test_a_slowdown_of_3_percent_is_found(self):
        slow = str(FIXTURES / "swap_slow.so")
        report = self.ab(self.swapping(module=slow), "--set", "swap.pace_ms=30", "--b",
                         "swap.share=0.03", "-i", self.prompts(1, 40, 41), "--rounds", "8",
                         "--no-trace")
        decode = report["measures"][0]
        self.assertEqual(decode["measure"], "decode")
        self.assertLess(decode["interval"][1], 1, decode)
        self.assertAlmostEqual(decode["ratio"], 1 / 1.03, delta=0.015)
        self.assertRegex(report["verdict"][0], r"^Decode: B is \d\.\d % slower than A")
        # Nothing else has changed, and prefill is not paced.
        self.assertEqual([d["key"] for d in report["differences"]], ["swap.share"])
        self.assertTrue(report["tokens"][0]["equal"])

    def test_other_tokens_are_shown_and_fail_only_if_asked_to(self):
        arguments = (self.small(), "--b", "attention.kv_format=fp8", "--b",
                     "attention.index_format=fp4", "-i", self.prompts(3, 60, 40), "--rounds", "2")
        report = self.ab(*arguments)
        unequal = [t for t in report["tokens"] if not t["equal"]]
        self.assertTrue(unequal, "the formats changed nothing: choose other prompts")
        for token in unequal:
            at = token["first_difference"]
            self.assertEqual(token["a"][:at], token["b"][:at])
            self.assertNotEqual(token["a"][at], token["b"][at])
            for text in (self.text("html"), self.text("md")):
                self.assertIn(f"{token['id']}: first difference at token {at} (of 40", text)
                self.assertIn(str(token["a"][at]), text)
        self.assertIn(f"other tokens for {len(unequal)} of 3 prompts", self.done.out)
        self.ab(*arguments, "--require-equal", status=1, output="again")
        self.ab(self.small(), "-i", self.prompts(1), "--rounds", "1", "--require-equal",
                output="equal")

    def test_sampled_tokens_repeat_with_their_seeds(self):
        report = self.ab(self.small(), "-i", self.prompts(1, temperature=1, seed=3), "--rounds",
                         "2", "--require-equal")
        self.assertTrue(report["tokens"][0]["equal"])
        self.assertIn("drawn at random", self.done.out)

    def test_traces_are_those_of_the_run(self):
        for staging in ("demand", "zero_copy"):
            with self.subTest(staging=staging):
                report = self.ab(self.swapping(staging=staging), "--b", "swap.module=swap_score",
                                 "--b", "swap.slots=12", "--b", f"swap.staging={staging}", "-i",
                                 self.prompts(), "--rounds", "1", "--slots", "8,12,16", output=staging)
                for side, own in (("A", 8), ("B", 12)):
                    trace = report["traces"][side]
                    file = self.path(f"{staging}/{trace['file']}")
                    self.expect(0, "replay", file, "--verify", "--no-bound")
                    # Steps add up to the counters of the round before the timed ones.
                    counters = next(p["swap"] for p in report["passes"]
                                    if p["round"] == 0 and p["side"] == side)
                    self.assertEqual(sum(trace["hits_by_step"]), counters["hits"])
                    self.assertEqual(sum(trace["distinct_by_step"]), counters["distinct"])
                    self.assertEqual(len(trace["hits_by_step"]), 2 * 11)  # steps of decode
                    self.expect(0, "replay", file, "--slots", "8,12,16", "--json",
                                self.path("rows.json"))
                    rows = json.loads((self.folder / "rows.json").read_text())["rows"]
                    self.assertEqual(trace["curve"], rows)
                    self.assertEqual(next(r for r in rows if r["slots"] == own)["misses"],
                                     counters["misses"])

    def test_the_curve_s_own_choice_of_slots_is_wide_and_holds_the_side_s(self):
        report = self.ab(self.swapping(slots=12), "--set", "swap.sink_tokens=8", "-i",
                         self.prompts(), "--rounds", "1")
        slots = [row["slots"] for row in report["traces"]["A"]["curve"]]
        # Eight and two pinned chunks are the least; the policy refuses eight: the side's own begin.
        self.assertEqual((slots[0], slots[-1]), (12, (80 + 11) // 4))
        report = self.ab(self.swapping(slots=10), "-i", self.prompts(), "--rounds", "1",
                         output="again")
        slots = [row["slots"] for row in report["traces"]["A"]["curve"]]
        self.assertEqual(slots, sorted(slots))
        self.assertEqual((slots[0], slots[-1]), (8, (80 + 11) // 4))
        self.assertIn(10, slots)
        self.assertGreater(len(slots), 5)
        ratios = [row["miss_ratio"] for row in report["traces"]["A"]["curve"]]
        self.assertEqual(ratios, sorted(ratios, reverse=True))
        self.assertEqual(ratios[-1], 0)

    def test_engines_that_stay_open_give_the_same(self):
        arguments = (self.swapping(), "--b", "swap.slots=10", "-i", self.prompts(1), "--rounds", "2")
        both = self.ab(*arguments, "--keep-open")
        self.assertEqual(both["engines"], "both open")
        one = self.ab(*arguments, output="one")
        self.assertEqual(one["engines"], "new for each turn")
        self.assertIsNone(one["why_not_kept_open"])
        self.assertEqual([t["a"] for t in one["tokens"]], [t["a"] for t in both["tokens"]])
        self.assertEqual(one["sides"]["B"]["swap"]["misses"], both["sides"]["B"]["swap"]["misses"])
        self.assertEqual(one["traces"]["B"]["hits_by_step"], both["traces"]["B"]["hits_by_step"])

    def test_sides_that_do_not_fit_together_are_opened_in_turns(self):
        # Memory is reserved, not used: 3 GiB of addresses a side, of 4.5 that are allowed.
        manifest = self.small(max_context=1 << 22)
        limit = 4608 << 20
        alone = self.expect(0, "check", manifest)
        self.assertRegex(alone.out, r"the device in all +3\.\d\d GiB")
        report = self.ab(manifest, "-i", self.prompts(1, 30), "--rounds", "1", "--keep-open",
                         preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assertEqual(report["engines"], "new for each turn")
        self.assertIn("side B", report["why_not_kept_open"])
        self.assertIn("every turn has a new engine", self.done.err)

    def test_a_prompt_that_one_side_cannot_serve_is_left_out(self):
        manifest = self.small(max_context=200)
        batch = self.batch([{"id": "short", "tokens": [1, 2, 3], "max_tokens": 4},
                            {"id": "long", "tokens": [1] * 150, "max_tokens": 4}])
        report = self.ab(manifest, "--b", "engine.max_context=100", "-i", batch, "--rounds", "2",
                         status=1)
        self.assertEqual([t["id"] for t in report["tokens"]], ["short"])
        self.assertEqual([(r["id"], r["side"]) for r in report["left_out"]], [("long", "B")])
        self.assertIn("Prompt long is left out: side B cannot serve it", self.done.out)
        only = self.batch([{"id": "long", "tokens": [1] * 150}], "only.jsonl")
        self.expect_refused("no prompt is served by both sides", "ab", manifest, "--b",
                            "engine.max_context=100", "-i", only, "-o", self.path("none"))
        self.assertFalse((self.folder / "none").exists())

    def test_two_files_are_two_sides(self):
        report = self.ab(self.small("first.toml"), self.small("second.toml", max_context=300),
                         "--a", "compute.precision=fast", "-i", self.prompts(1), "--rounds", "1")
        self.assertEqual([report["sides"][s]["label"] for s in "AB"], ["A: first", "B: second"])
        self.assertEqual({d["key"] for d in report["differences"]},
                         {"compute.precision", "engine.max_context"})

    def test_an_interrupt_leaves_a_partial_report_or_none(self):
        arguments = [EBB, "ab", self.small(), "-i", self.prompts(1), "--rounds", "100000", "-o"]
        for after in ("before the rounds: A", "round 2 of"):
            with self.subTest(after=after):
                output = self.path("partial" if "round 2" in after else "none")
                process = subprocess.Popen([*map(str, arguments), output], text=True,
                                           stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                self.addCleanup(process.kill)
                line = process.stderr.readline()
                while after not in line:
                    self.assertNotEqual(line, "", "it ended before it could be stopped")
                    line = process.stderr.readline()
                process.send_signal(signal.SIGINT)
                out, err = process.communicate(timeout=100)
                self.assertEqual(process.returncode, 130, err)
        self.assertFalse((self.folder / "none").exists())
        self.assertEqual([p for p in self.folder.iterdir() if p.name.endswith(".tmp")], [])
        report = json.loads((self.folder / "partial" / "report.json").read_text())
        self.assertFalse(report["complete"])
        self.assertGreaterEqual(report["rounds"], 2)
        self.assertEqual(len(report["passes"]), 2 * report["rounds"] + 2)
        for form in ("html", "md"):
            self.assertIn(f"Partial: interrupted after {report['rounds']} of 100000 rounds",
                          self.text(form, "partial"))

    def test_the_next_comparison_clears_away_what_a_killed_one_left(self):
        begin = ["ab", self.swapping(), "-i", self.prompts(1), "-o", self.path("report")]
        process = subprocess.Popen([EBB, *map(str, begin), "--rounds", "100000"], text=True,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        while "round 2 of" not in process.stderr.readline():
            self.assertIsNone(process.poll(), "it ended before it could be killed")
        left = self.folder / f"report.{process.pid}.tmp"
        self.expect_refused("report: another process is writing it", *begin)
        process.kill()
        process.wait()
        self.assertIn("a.trace", [path.name for path in left.iterdir()])
        self.assertFalse((self.folder / "report").exists())
        self.expect(0, *begin, "--rounds", "1")
        self.assertFalse(left.exists())
        self.assertTrue((self.folder / "report" / "report.html").exists())

    def test_nothing_is_overwritten(self):
        arguments = ("ab", self.small(), "-i", self.prompts(1), "--rounds", "1", "-o")
        self.write("file", "mine")
        self.expect_refused("exists", *arguments, self.path("file"))
        (self.folder / "full").mkdir()
        self.write("full/report.json", "mine")
        self.expect_refused("not empty", *arguments, self.path("full"))
        self.assertEqual((self.folder / "full" / "report.json").read_text(), "mine")
        (self.folder / "empty").mkdir()
        self.expect(0, *arguments, self.path("empty"))
        self.assertTrue((self.folder / "empty" / "report.html").exists())
        self.expect_refused("cannot make", *arguments, self.path("no/where/report"))

    def test_what_is_wrong_is_refused_before_anything_is_made(self):
        manifest, batch = self.small(), self.prompts(1)
        out = ("-o", self.path("out"))
        for says, arguments in (
                ("no such file", [self.path("none.toml"), "-i", batch]),
                ("no such file", [manifest, self.path("none.toml"), "-i", batch]),
                ("no such file", [manifest, "-i", self.path("none.jsonl")]),
                ("swap.slotz", [self.swapping(), "--a", "swap.slotz=3", "-i", batch]),
                ("no_such_module", [manifest, "--b", "compute.module=no_such_module", "-i", batch]),
                ("no valid JSON", [manifest, "-i", self.write("bad.jsonl", "{")])):
            self.expect_refused(says, "ab", *arguments, *out)
        for arguments in ([manifest, manifest, manifest, "-i", batch], [manifest],
                          [manifest, "-i", batch, "--rounds", "0"],
                          [manifest, "-i", batch, "--slots", "0"],
                          [manifest, "-i", batch, "--a"]):
            self.assertEqual(self.ebb("ab", *arguments, *out).status, 2, arguments)
        self.expect_refused("memory_limit", "ab", manifest, "--b", "compute.memory_limit=1000",
                            "-i", batch, *out, status=3)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()),
                         ["bad.jsonl", "m.toml", "p.jsonl", "s.toml"])

    def test_sequences_that_decode_together_are_measured_one_by_one(self):
        report = self.ab(self.swapping(max_sequences=2), "--b", "swap.module=swap_none", "-i",
                         self.prompts(3), "--rounds", "2")
        for sample in report["samples"]:
            self.assertEqual(len(sample["token_ms"]), 11)
            self.assertGreater(min(sample["token_ms"]), 0)
        self.assertTrue(all(t["equal"] for t in report["tokens"]))

    def test_samples_say_what_a_prefix_spared(self):
        lines = [{"id": f"p{i}", "tokens": [j * 37 % 300 + 1 for j in range(260)] + [i + 1] * 4,
                  "max_tokens": 3, "ignore_eos": True} for i in range(3)]
        report = self.ab(self.small(max_context=300), "--b", "engine.prefix_sequences=1", "-i",
                         self.batch(lines), "--rounds", "1")
        self.assertTrue(all(token["equal"] for token in report["tokens"]))
        self.assertEqual(len(report["samples"]), 2 * 2 * 3)
        for sample in report["samples"]:
            spared = 260 if sample["side"] == "B" and sample["id"] != "p0" else 0
            self.assertEqual((sample["prompt_tokens"], sample["cached_tokens"]), (264, spared))
            self.assertAlmostEqual(sample["prefill_tokens_per_s"] * sample["prefill_s"],
                                   264 - spared, places=6)

    def test_text_around_a_difference_is_shown(self):
        batch = self.batch([{"id": "a", "prompt": "It was a dark night, and", "max_tokens": 20,
                             "temperature": 1.0}])
        report = self.ab(self.manifest(), "--b", "sampling.seed=5", "-i", batch, "--rounds", "1")
        token, = report["tokens"]
        self.assertFalse(token["equal"])
        self.assertNotEqual(token["text_a"], token["text_b"])
        shared = token["text_a"][:8]
        at = token["first_difference"]
        for text in (self.text("html"), self.text("md")):
            self.assertIn(f"first difference at token {at} (of 20 on A, 20 on B)", text)
        if at == 0:
            self.assertIn("A  " + f"{token['a'][0]:>8}  {shared}", self.text("md"))

    @classmethod
    def setUpClass(cls):
        try:
            import pandas
            cls.pandas = pandas
        except ImportError:
            cls.pandas = None

    def test_results_are_read_by_pandas(self):
        if self.pandas is None:
            print("SKIPPED: no pandas: results are not re-read by it", flush=True)
            self.skipTest("no pandas")
        pandas = self.pandas
        report = self.ab(self.swapping(), "--b", "swap.slots=10", "-i", self.prompts(), "--rounds",
                         "2")
        samples = pandas.json_normalize(report["samples"])
        self.assertEqual(len(samples), 3 * 2 * 2)
        rates = samples[samples["round"] > 0].groupby("side")["decode_tokens_per_s"].mean()
        self.assertTrue((rates > 0).all())
        passes = pandas.json_normalize(report["passes"])
        self.assertEqual(passes["swap.misses"].nunique(), 2)
        self.assertFalse(samples.drop(columns="error").isna().any().any())
        # And what other commands write.
        self.expect(0, "run", self.small(), "-i", self.prompts(), "-o", self.path("r.jsonl"))
        results = pandas.read_json(self.path("r.jsonl"), lines=True)
        self.assertEqual(list(results["id"]), ["p0", "p1"])
        self.expect(0, "bench", self.small(), "--frontiers", "64,128", "--new", "2", "--csv",
                    self.path("b.csv"))
        bench = pandas.read_csv(self.path("b.csv"))
        self.assertEqual(list(bench["frontier"]), [64, 64, 128, 128])
        self.assertTrue((bench["tok_s"] > 0).all())
        trace = self.path("report/a.trace")
        self.expect(0, "replay", trace, "--slots", "8,10", "--csv", self.path("rows.csv"))
        rows = pandas.read_csv(self.path("rows.csv"))
        self.assertEqual(list(rows["slots"]), [8, 10])
        self.assertTrue((rows["misses"] >= rows["bound"]).all())


if __name__ == "__main__":
    unittest.main()
