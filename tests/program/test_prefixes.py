"""Prompts that begin alike: what they share is fed once, and nothing else changes."""

import json
import pathlib
import random
import signal
import struct
import unittest

from support import DATA, DEMO, FIXTURES, ProgramTest, stop

N_DOCUMENT = 400
BOUNDED = ('[memory]\nmodule = "memory_flash"\nmode = "{mode}"\ninterval = 5\nbudget = 0.5\n'
           'recent_tokens = 8\nsink_tokens = 4\n'
           f'[[memory.scorer]]\nmodule = "{FIXTURES.parent}/policies/scorer_pattern.so"\n')
SWAP = '[swap]\nmodule = "swap_lru"\nslots = 66\nstaging = "{staging}"\n'


def tokens(n, seed):
    draw = random.Random(seed)
    return [0] + [draw.randrange(300, 3000) for _ in range(n - 1)]


def questions(n=30, n_documents=3, max_tokens=6, **more):
    """One after another of different documents; each begins with another token."""
    lines = []
    for i in range(n):
        asks = [300 + i] + tokens(5 + i % 4, 100 + i)
        lines.append({"id": f"q{i}", "tokens": tokens(N_DOCUMENT, i % n_documents) + asks,
                      "max_tokens": max_tokens, "ignore_eos": True, **more})
    return lines


class Prefixes(ProgramTest):
    def answers(self, manifest, batch, output, *more, status=0):
        self.expect(status, "run", manifest, "-i", batch, "-o", self.path(output), *more,
                    timeout=300)
        return {line["id"]: line for line in self.results(output)}

    def held(self, n):
        return ("--set", f"engine.prefix_sequences={n}")

    def same(self, got, want):
        self.assertEqual({name: (line["tokens"], line["text"], line["finish_reason"])
                          for name, line in got.items()},
                         {name: (line["tokens"], line["text"], line["finish_reason"])
                          for name, line in want.items()})

    def fed(self, answers):
        return sum(line["usage"]["prompt_tokens"]
                   - line["usage"]["prompt_tokens_details"]["cached_tokens"]
                   for line in answers.values())

    def test_documents_are_fed_once_and_the_answers_are_the_same(self):
        lines = questions()
        batch = self.batch(lines)
        all_tokens = sum(len(line["tokens"]) for line in lines)
        once = 3 * N_DOCUMENT + all_tokens - 30 * N_DOCUMENT
        plain = self.answers(self.manifest(), batch, "plain.jsonl")
        self.assertEqual(self.fed(plain), all_tokens)
        self.assertEqual(list(plain), [line["id"] for line in lines])
        for n_together in (1, 4):
            manifest = self.manifest(max_sequences=n_together)
            for n_held in (1, 3):
                with self.subTest(together=n_together, held=n_held):
                    name = f"{n_together}-{n_held}.jsonl"
                    got = self.answers(manifest, batch, name, *self.held(n_held))
                    self.same(got, plain)
                    self.assertEqual(self.fed(got), once)
                    # The first of each document feeds it; the others follow it.
                    firsts = [name for name, line in got.items()
                              if not line["usage"]["prompt_tokens_details"]["cached_tokens"]]
                    self.assertEqual(sorted(firsts), ["q0", "q1", "q2"])
        self.assertLess(sum(line["timings"]["prefill_s"] for line in got.values()),
                        sum(line["timings"]["prefill_s"] for line in plain.values()) / 3)
        result = self.expect(0, "run", manifest, "-i", batch, "-o", self.path("last.jsonl"),
                             *self.held(1))
        self.assertIn(f"{all_tokens} prompt ({all_tokens - once} of them shared", result.err)

    def test_nothing_depends_on_swapping_or_forecasts(self):
        batch = self.batch(questions(9, max_tokens=24))
        plain = self.answers(self.manifest(), batch, "plain.jsonl")
        for staging in ("zero_copy", "demand"):
            manifest = self.manifest(max_sequences=2, more=SWAP.format(staging=staging))
            got = self.answers(manifest, batch, f"{staging}.jsonl", *self.held(2))
            self.same(got, plain)
            self.assertLess(self.fed(got), 3 * N_DOCUMENT + 9 * 20)
        for mode in ("exact", "bounded", "direct"):
            more = SWAP.format(staging="zero_copy") + BOUNDED.format(mode=mode)
            manifest = self.manifest(max_sequences=2, more=more)
            apart = self.answers(manifest, batch, f"{mode}-apart.jsonl")
            got = self.answers(manifest, batch, f"{mode}.jsonl", *self.held(2))
            self.same(got, apart)
            self.assertLess(self.fed(got), 3 * N_DOCUMENT + 9 * 20)
            for name, line in got.items():
                self.assertGreater(line["memory"]["refreshes"], 0)
            (self.same if mode == "exact" else self.differ)(got, plain)

    def differ(self, got, want):
        """Else the test above would say nothing of forecasts."""
        self.assertNotEqual([got[name]["tokens"] for name in sorted(got)],
                            [want[name]["tokens"] for name in sorted(want)])

    def test_seeds_and_stops_are_the_requests_own(self):
        lines = questions(8, 2, max_tokens=12, temperature=1.2)
        for i, line in enumerate(lines):
            line["seed"] = i
        batch = self.batch(lines)
        plain = self.answers(self.manifest(), batch, "plain.jsonl")
        self.assertGreater(len({tuple(line["tokens"]) for line in plain.values()}), 6)
        self.same(self.answers(self.manifest(max_sequences=3), batch, "r.jsonl", *self.held(1)),
                  plain)

    def test_a_trace_of_it_is_replayed_to_the_integer(self):
        batch = self.batch(questions(9, max_tokens=16))
        for staging in ("zero_copy", "demand"):
            for n_together in (1, 3):
                manifest = self.manifest(max_sequences=n_together,
                                         more=SWAP.format(staging=staging))
                trace = self.path(f"{staging}{n_together}.trace")
                self.answers(manifest, batch, f"{staging}{n_together}.jsonl", *self.held(1),
                             "--trace", trace)
                result = self.expect(0, "replay", trace, "--verify")
                self.assertIn("equal to the run", result.out)
                self.check_births(trace)
                facts = json.loads(self.expect(0, "inspect", "--json", trace).out)
                self.assertEqual(facts["max_decode"], n_together)
                self.assertEqual(facts["max_open"], n_together + 1)
                totals = facts["totals"]
                self.assertEqual(totals["sequences"], 9 + 3)
                # Who feeds a document for the others goes on from a copy of it as well.
                self.assertEqual((totals["copies"], totals["copied_tokens"]), (9, 9 * N_DOCUMENT))
                self.assertEqual(totals["tokens"] - sum(
                    len(line["tokens"]) - 1 for line in self.results(f"{staging}{n_together}.jsonl")),
                    sum(len(line["tokens"]) for line in questions(9)) - 6 * N_DOCUMENT)

    def check_births(self, trace):
        """What is copied is not born: exported are the births that the replay stores."""
        self.expect(0, "replay", trace, "--no-bound", "--oracle-general", self.path("all.bin"),
                    "--births", "--json", self.path("rows.json"))
        row, = json.loads((self.folder / "rows.json").read_text())["rows"]
        records = (self.folder / "all.bin").stat().st_size // struct.calcsize("<IQIq")
        self.assertEqual(records, row["distinct"] + row["stores"])

    def traced(self, lines):
        manifest = self.manifest(more=SWAP.format(staging="demand"))
        trace = self.path("run.trace")
        self.answers(manifest, self.batch(lines), "r.jsonl", *self.held(1), "--trace", trace)
        return trace

    def test_selections_are_those_of_a_request_and_not_of_a_prefix(self):
        # The prefix ends with a step of one row; the first request decodes one step, as does the
        # second; the third, five.
        lines = questions(4, 1)
        for line, max_tokens in zip(lines, (2, 2, 6, 9)):
            line["tokens"] = line["tokens"][:385] + line["tokens"][N_DOCUMENT:]
            line["max_tokens"] = max_tokens
        out = self.expect(0, "replay", self.traced(lines), "--selections", self.path("s.bin")).out
        self.assertIn(f"4 layers, {2 * 5 - 2} steps", out)

    def test_prompts_may_be_equal_or_the_beginning_of_one_another(self):
        document = tokens(N_DOCUMENT, 1)
        lines = [{"id": f"e{i}", "tokens": document + [5] * extra, "max_tokens": 4}
                 for i, extra in enumerate((0, 0, 1, 9, 0))]
        batch = self.batch(lines)
        plain = self.answers(self.manifest(), batch, "plain.jsonl")
        got = self.answers(self.manifest(), batch, "r.jsonl", *self.held(1))
        self.same(got, plain)
        self.assertEqual(self.fed(got), (N_DOCUMENT - 1) + 1 + 1 + 2 + 10 + 1)

    def test_what_is_too_short_or_nobody_shares_changes_no_order(self):
        lines = [{"id": f"s{i}", "tokens": tokens(255, i // 2) + [300 + i] * 3, "max_tokens": 2}
                 for i in range(6)]
        got = self.answers(self.manifest(), self.batch(lines), "r.jsonl", *self.held(1))
        self.assertEqual(list(got), [line["id"] for line in lines])
        self.assertEqual(self.fed(got), 6 * 258)

    def test_failures_are_the_requests_own(self):
        lines = questions(6, 2)
        lines.insert(3, {"id": "long", "tokens": tokens(N_DOCUMENT, 0) + [5] * 200})
        lines.insert(1, {"id": "vocabulary", "tokens": tokens(N_DOCUMENT, 0) + [99999]})
        batch = self.batch(lines)
        got = self.answers(self.manifest(), batch, "r.jsonl", *self.held(1), status=1)
        self.assertEqual(len(got), 8)
        for name in ("long", "vocabulary"):
            self.assertEqual(got.pop(name)["error"]["code"], "invalid_argument")
        self.assertTrue(all(line["error"] is None for line in got.values()))
        kept = self.batch([line for line in lines if line["id"].startswith("q")], "kept.jsonl")
        self.same(got, self.answers(self.manifest(), kept, "plain.jsonl"))

    def test_a_prompt_whose_logits_are_no_numbers_fails_alone(self):
        source = DATA / "models" / "tiny_kmix.gguf"
        table = next(t for t in json.loads(self.expect(0, "inspect", "--json", source).out)["tensors"]
                     if t["name"] == "token_embd.weight")
        row = 2 * table["shape"][0]  # BF16
        begin = int(table["place"].split("data at ")[1].split()[0].rstrip(","))
        model = bytearray(source.read_bytes())
        model[begin + 7 * row:begin + 8 * row] = b"\xff" * row  # token 7 is all NaN
        broken = self.write("nan.gguf", bytes(model))
        document = [10 + i * 7 % 90 for i in range(300)]
        lines = [{"id": str(last), "tokens": document + [last], "max_tokens": 3}
                 for last in (5, 7, 6)]
        manifest = self.manifest(model=broken, tokenizer=False)
        got = self.answers(manifest, self.batch(lines), "r.jsonl", *self.held(1), status=1)
        self.assertIn("no numbers", got.pop("7")["error"]["message"])
        healthy = self.manifest("h.toml", model=source, tokenizer=False)
        self.same(got, self.answers(healthy, self.batch([lines[0], lines[2]]), "h.jsonl"))

    def test_an_interrupted_run_can_be_resumed(self):
        lines = questions(12, max_tokens=60)
        manifest, batch = self.manifest(), self.batch(lines)
        want = self.answers(manifest, batch, "plain.jsonl")
        for number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
            output = pathlib.Path(self.path(f"r{int(number)}.jsonl"))
            arguments = ("run", manifest, "-i", batch, "-o", output, *self.held(1))
            self.assertEqual(stop(self.run_until_line(output, *arguments), number), status)
            self.assertLess(len(output.read_text().splitlines()), 12)
            self.expect(0, *arguments, "--resume")
            self.assertEqual(len(self.results(output.name)), 12)
            self.same({line["id"]: line for line in self.results(output.name)}, want)

    def test_needles_in_one_text_are_judged_the_same(self):
        needles = [json.loads(line) for line in (DATA / "needles.jsonl").read_text().splitlines()]
        text = needles[0]["prompt"].split("<｜User｜>")[0]
        lines = [dict(needle, prompt=text + "<｜User｜>" + needle["prompt"].split("<｜User｜>")[-1])
                 for needle in needles[:4]]
        path = self.batch(lines, "needles.jsonl")
        outputs = []
        for n_held in (0, 1):
            self.expect(0, "eval", "needles", self.manifest(max_context=4096), "-i", path, "-o",
                        self.path(f"n{n_held}.jsonl"), *self.held(n_held), timeout=280)
            outputs.append({line["id"]: (line["n_tokens"], line["text"], line["right"])
                            for line in self.results(f"n{n_held}.jsonl")})
        self.assertEqual(*outputs)

    def test_its_memory_is_planned_and_told(self):
        manifest = self.manifest(max_sequences=2)
        bare = json.loads(self.expect(0, "plan", "--json", manifest).out)
        more = json.loads(self.expect(0, "plan", "--json", manifest, *self.held(3)).out)
        self.assertEqual(more["session"], dict(bare["session"], prefix_sequences=3))
        parts = {part["part"]: part for part in bare["device"]["parts"]}
        for part in more["device"]["parts"]:
            before = parts[part["part"]]
            if part["part"] in ("csa rows", "hca rows", "index keys", "window rows",
                                "compressor state"):
                # Each layer's share begins at a multiple of 256 bytes.
                self.assertAlmostEqual(part["bytes"], before["bytes"] * 5 / 2, delta=24 * 256,
                                       msg=part["part"])
            else:
                self.assertEqual(part["bytes"], before["bytes"], part["part"])
        says = "512 tokens a sequence, 2 sequences and 3 for prefixes, up to 64 rows a step"
        for command in ("plan", "check"):
            self.assertIn(says, self.expect(0, command, manifest, *self.held(3)).out)
        limit = f"compute.memory_limit={bare['device']['bytes'] + 1000}"
        refused = self.expect(3, "plan", manifest, *self.held(3), "--set", limit)
        self.assertIn("--set engine.prefix_sequences=0", refused.err)
        result = self.expect(3, "run", manifest, *self.held(3), "--set", limit, "-i",
                             self.batch(questions(2)), "-o", self.path("r.jsonl"))
        self.assertIn("memory_limit", result.err)
        self.assertFalse((self.folder / "r.jsonl").exists())

    def test_a_number_out_of_range_is_refused(self):
        for value in ("-1", "1025", "many"):
            self.expect_refused("prefix_sequences = ", "check", self.manifest(), "--set",
                                f"engine.prefix_sequences={value}")


if __name__ == "__main__":
    unittest.main()
