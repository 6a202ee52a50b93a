"""ebb eval: shapes and values of what it measures."""

import array
import json
import math
import os
import stat
import statistics
import subprocess
import time
import unittest

from support import DATA, EBB, ProgramTest, stop


def floats(path):
    values = array.array("f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values


class Logits(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.manifest(model=DATA / "models" / "tiny_kmix.gguf", tokenizer=False,
                                   max_context=128)
        index = json.loads((DATA / "vectors" / "tiny_kmix" / "index.json").read_text())
        self.prompts = [p for p in index["prompts"] if p["n"] <= 8]
        self.width = index["files"]["last_logits.f32"]["shape"][1]

    def logits(self, prompts, *more):
        path = self.write("p.json", json.dumps(prompts))
        self.expect(0, "eval", "logits", self.model, "-i", path, "-o", self.path("l.f32"), *more)
        return floats(self.path("l.f32"))

    def test_last_logits_agree_with_another_engine(self):
        got = self.logits([p["tokens"] for p in self.prompts])
        self.assertEqual(len(got), len(self.prompts) * self.width)
        reference = floats(DATA / "vectors" / "tiny_kmix" / "last_logits.f32")
        for i, prompt in enumerate(self.prompts):
            want = reference[prompt["row"] * self.width:(prompt["row"] + 1) * self.width]
            row = got[i * self.width:(i + 1) * self.width]
            self.assertLess(max(abs(a - b) for a, b in zip(row, want)), 1e-3, prompt["n"])

    def test_all_positions_and_any_chunk_give_the_same_rows(self):
        tokens = self.prompts[-1]["tokens"]
        every = self.logits([tokens], "--all")
        self.assertEqual(len(every), len(tokens) * self.width)
        for chunk in (1, 3):
            other = self.logits({"prompts": [tokens]}, "--all", "--chunk", chunk)
            self.assertLess(max(abs(a - b) for a, b in zip(every, other)), 1e-4)
        last = self.logits([{"tokens": tokens}])
        self.assertLess(max(abs(a - b) for a, b in zip(every[-self.width:], last)), 1e-4)

    def test_bad_prompts_leave_no_file(self):
        for content, says in (("[[1,", "JSON"), ("[]", "list of prompts"), ("[[1], [-1]]",
                              "prompt 1"), ("[[1], []]", "prompt 1"), ("[[100000]]", "token id"),
                              ('[{"ids": [1]}]', "prompt 0")):
            path = self.write("p.json", content)
            self.expect_refused(says, "eval", "logits", self.model, "-i", path, "-o",
                                self.path("l.f32"))
            self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["m.toml", "p.json"])

    def test_an_interrupted_evaluation_leaves_no_file(self):
        model = self.manifest(max_context=4096)
        path = self.write("p.json", json.dumps([[1 + i % 4000 for i in range(4096)]] * 50))
        process = subprocess.Popen([EBB, "eval", "logits", model, "-i", path, "-o",
                                    self.path("l.f32"), "--chunk", "16"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while not list(self.folder.glob("l.f32.*.tmp")):
            self.assertIsNone(process.poll())
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)
        self.assertEqual(stop(process), 130)
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["m.toml", "p.json"])

    def test_an_output_is_a_regular_file_or_a_link_to_one(self):
        path = self.write("p.json", json.dumps([self.prompts[0]["tokens"]]))
        os.mkfifo(self.path("pipe"))
        os.symlink("nowhere/at/all", self.path("lost"))
        for name, says in (("pipe", "not a regular"), ("lost", "nowhere"), (".", "not a regular")):
            self.expect_refused(says, "eval", "logits", self.model, "-i", path, "-o",
                                self.path(name))
        self.assertTrue(stat.S_ISFIFO(os.stat(self.path("pipe")).st_mode))
        target = self.write("target.f32", b"old")
        os.symlink("target.f32", self.path("link.f32"))
        self.expect(0, "eval", "logits", self.model, "-i", path, "-o", self.path("link.f32"))
        self.assertTrue(os.path.islink(self.path("link.f32")))
        self.assertEqual(os.path.getsize(target), 4 * self.width)

    def test_a_chunk_beyond_the_step_is_refused(self):
        path = self.write("p.json", "[[1]]")
        self.expect_refused("--chunk 65", "eval", "logits", self.model, "-i", path, "-o",
                            self.path("l.f32"), "--chunk", "65")


class Likelihood(ProgramTest):
    """ebb eval needles --likelihood."""
    MEMORY = ('[memory]\nmodule = "memory_flash"\nmode = "{}"\ninterval = 64\nbudget = 0.05\n'
              'recent_tokens = 0\nsink_tokens = 0\n[[memory.scorer]]\n'
              'module = "scorer_recent"\n')

    def likelihood(self, manifest, needles, *more, output="l.jsonl"):
        done = self.expect(0, "eval", "needles", manifest, "-i", self.batch(needles), "-o",
                           self.path(output), "--likelihood", *more)
        self.table = done.out
        return self.results(output)

    def setUp(self):
        super().setUp()
        with open(DATA / "needles.jsonl", encoding="utf-8") as file:
            self.needle = json.loads(file.readline())

    def test_the_likelihood_is_that_of_the_logits_after_each_prefix(self):
        # Ids from tokenizers that share nothing with ours; logits through the other door.
        vectors = json.loads((DATA / "tokenizer" / "tokenizer_vectors.json").read_text())
        by_text = {v["text"]: v["ids"] for v in vectors}
        prompt, answer = "http://a.b/c?d=e#f", "The access code of Marlow Brackley is 48213."
        wanted = by_text[answer] + [1]  # the end token of this model
        manifest = self.manifest()
        ids = self.write("ids.json", json.dumps([by_text[prompt] + by_text[answer]]))
        self.expect(0, "eval", "logits", manifest, "-i", ids, "-o", self.path("l.f32"), "--all")
        rows = floats(self.path("l.f32"))
        width = len(rows) // (len(by_text[prompt]) + len(by_text[answer]))
        want, best = [], []
        for i, token in enumerate(wanted):
            at = (len(by_text[prompt]) - 1 + i) * width
            row = rows[at:at + width]
            top = max(row)
            want.append(math.log(math.fsum(math.exp(x - top) for x in row)) + top - row[token])
            best.append(row.index(top) == token)
        for decode in ((), ("--decode", "1"), ("--decode", str(len(by_text[prompt]) - 1))):
            line, = self.likelihood(manifest, [{"id": "a", "prompt": prompt, "answer": answer}],
                                    *decode)
            self.assertEqual(line["tokens"], wanted)
            self.assertEqual(len(line["nats"]), len(want))
            for got, value in zip(line["nats"], want):
                self.assertAlmostEqual(got, value, delta=1e-4)
            self.assertAlmostEqual(line["mean_nats"], statistics.fmean(want), delta=1e-4)
            self.assertEqual(line["n_right_tokens"], (best + [False]).index(False))
        self.assertGreater(min(want), 0)
        self.assertGreater(max(want), 1)  # no needle's answer: a sure one would show little

    def test_right_is_what_greedy_decoding_gives(self):
        manifest = self.manifest(max_context=2048)
        line, = self.likelihood(manifest, [self.needle])
        self.assertTrue(line["right"])
        self.assertLess(line["mean_nats"], 0.01)
        self.assertRegex(self.table, r"(?m)^ +all +1/1 +0\.00")
        wrong = dict(self.needle, answer=self.needle["answer"][:-1])
        line, = self.likelihood(manifest, [wrong])
        self.assertFalse(line["right"])  # the end token is not what comes then
        self.assertEqual(line["n_right_tokens"], len(wrong["answer"]))
        self.assertGreater(line["nats"][-1], 1)

    def test_a_limited_selection_acts_two_steps_after_the_forecast_is_asked_for(self):
        nats = {}
        for mode in ("off", "exact", "bounded"):
            manifest = self.manifest(max_context=2048, more=self.MEMORY.format(mode))
            for decode in ((), ("--decode", "2")):
                found = {str(self.likelihood(manifest, [self.needle], *decode, "--set",
                                             f"engine.prefill_chunk={chunk}")[0]["nats"])
                         for chunk in (64, 100)}
                self.assertEqual(len(found), 1)  # how the prompt is fed changes nothing
                nats[mode, len(decode) > 0] = json.loads(found.pop())
        self.assertEqual(nats["exact", False], nats["off", False])
        self.assertEqual(nats["exact", True], nats["off", True])
        self.assertEqual(nats["bounded", False][:2], nats["off", False][:2])
        self.assertNotEqual(nats["bounded", False][2], nats["off", False][2])
        self.assertNotEqual(nats["bounded", True][0], nats["off", True][0])
        self.assertGreater(statistics.fmean(nats["bounded", True]), 1)  # of the newest chunks alone

    def test_differences_are_paired_by_needle(self):
        needles = [{"id": f"n{i}", "prompt": f"It was {word}, and the ", "answer": word}
                   for i, word in enumerate(("dark", "late", "a long way"))]
        first = self.likelihood(self.manifest(), needles, output="first.jsonl")
        # Other needles and another order; n2 is in the first alone.
        other = [dict(needles[1], prompt="The answer is "), dict(needles[0]),
                 {"id": "new", "prompt": "x", "answer": "y"}]
        second = self.likelihood(self.manifest(), other, "--against", self.path("first.jsonl"))
        by_id = {line["id"]: line["mean_nats"] for line in first}
        want = [second[0]["mean_nats"] - by_id["n1"], second[1]["mean_nats"] - by_id["n0"]]
        self.assertEqual([line.get("difference") for line in second], [*want, None])
        self.assertEqual(want[1], 0)
        half = 12.7062047 * statistics.stdev(want) / 2 ** 0.5  # 1 degree of freedom
        row = self.table.splitlines()[-1].split()
        mean = statistics.fmean(want)
        self.assertEqual(row[-5:], ["2", f"{mean:+.4f}", f"{mean - half:+.4f}", "to",
                                    f"{mean + half:+.4f}"])
        all_three = [line["mean_nats"] for line in second]
        half = 4.302653 * statistics.stdev(all_three) / 3 ** 0.5
        mean = statistics.fmean(all_three)
        self.assertEqual(row[2:7], [f"{mean:.4f}", f"{mean - half:.4f}", "to", f"{mean + half:.4f}",
                                    f"{math.exp(mean):.3f}"])

    def test_what_has_no_likelihood_is_refused_before_anything_is_run(self):
        good = {"id": "good", "prompt": "It was dark", "answer": "y"}
        several = {"id": "s", "prompt": "x", "answers": ["a", "b"]}
        long = {"id": "long", "prompt": "x " * 255, "answer": "y " * 200}
        self.likelihood(self.manifest(), [good], output="o.jsonl")
        self.write("bad.jsonl", '{"id": "good"}\n')
        self.write("nan.jsonl", '{"id": "good", "tokens": [1], "nats": []}\n')
        self.write("huge.jsonl", '{"id": "good", "tokens": [1, 2], "nats": [1e308, 1e308]}\n')
        for lines, more, says in (
                ([good], ("--against", self.path("huge.jsonl")), "huge.jsonl:1: want what"),
                ([good, several], (), "needle s: several answers"),
                ([good, long], (), "needle long: with its answer the prompt has"),
                ([good], ("--decode", "9"), "--decode 9: the prompt has"),
                ([good], ("--against", self.path("bad.jsonl")), "bad.jsonl:1: want what"),
                ([good], ("--against", self.path("nan.jsonl")), "nan.jsonl:1: want what"),
                ([good], ("--against", self.path("none.jsonl")), "none.jsonl"),
                ([dict(good, id="x")], ("--against", self.path("o.jsonl")), "none of these needles"),
                ([dict(good, answer="z")], ("--against", self.path("o.jsonl")), "another answer")):
            self.expect_refused(says, "eval", "needles", self.manifest(), "-i", self.batch(lines),
                                "-o", self.path("l.jsonl"), "--likelihood", *more)
            self.assertFalse((self.folder / "l.jsonl").exists())
        for more in (("--decode", "2"), ("--against", self.path("o.jsonl"))):
            result = self.expect(2, "eval", "needles", self.manifest(), "-i", self.batch([good]),
                                 *more)
            self.assertIn("--likelihood", result.err)


class Quality(ProgramTest):
    def test_needles_are_found_and_counted_by_length(self):
        result = self.expect(0, "eval", "needles", self.manifest(max_context=2048), "-i",
                             DATA / "needles.jsonl", "--limit", "2", "-o", self.path("n.jsonl"),
                             "--set", "engine.prefill_chunk=256")
        self.assertRegex(result.out, r"(?m)^ +<=1024 +2/2 +100\.0 +34\.2 to 100\.0 ")
        self.assertRegex(result.out, r"(?m)^ +all +2/2 ")
        lines = self.results("n.jsonl")
        self.assertEqual([line["right"] for line in lines], [True, True])

    def test_a_wrong_answer_is_not_right(self):
        with open(DATA / "needles.jsonl", encoding="utf-8") as file:
            needle = json.loads(file.readline())
        needle["answer"] = needle["answer"][:-1]
        self.expect(0, "eval", "needles", self.manifest(max_context=2048), "-i",
                    self.batch([needle]), "-o", self.path("n.jsonl"))
        self.assertFalse(self.results("n.jsonl")[0]["right"])

    def test_needles_without_an_answer_are_refused(self):
        self.expect_refused("p.jsonl:1: ", "eval", "needles", self.manifest(), "-i",
                            self.batch([{"id": "a", "prompt": "x"}]))

    def test_needles_of_one_id_are_refused(self):
        needle = {"id": "a", "prompt": "x", "answer": "y"}
        self.expect_refused("p.jsonl:2: id a stands in line 1 already", "eval", "needles",
                            self.manifest(), "-i", self.batch([needle, needle]))

    def test_a_needle_that_is_too_long_is_named_in_plain_characters(self):
        needle = {"id": "a\x1b[2J", "prompt": "x " * 600, "answer": "y"}
        result = self.expect(2, "eval", "needles", self.manifest(), "-i", self.batch([needle]))
        self.assertIn(r"needle a\x1b[2J: the prompt has", result.err)

    def test_bad_needles_and_outputs_are_refused_before_anything_is_run(self):
        good = {"id": "good", "prompt": "x", "answer": "y"}
        long = {"id": "long", "prompt": "x " * 600, "answer": "y"}
        for lines, output, says in (([good, long], "n.jsonl", "needle long"),
                                    ([good], "nowhere/n.jsonl", "nowhere"),
                                    ([good], "p.jsonl", "named by --input and by --output")):
            self.expect_refused(says, "eval", "needles", self.manifest(), "-i", self.batch(lines),
                                "-o", self.path(output))
        self.assertEqual(sorted(p.name for p in self.folder.iterdir()), ["m.toml", "p.jsonl"])

    def test_perplexity_agrees_with_another_engine(self):
        want = json.loads((DATA / "prose_heldout.json").read_text())["mean_nll_by_512"][0]
        arguments = ("eval", "perplexity", self.manifest(), "-i", DATA / "prose_heldout.txt",
                     "--tokens", "512")
        report = json.loads(self.expect(0, *arguments, "--json").out)
        self.assertEqual(report["n_predictions"], 512)
        self.assertAlmostEqual(report["mean_nll"], want, delta=1e-3)
        self.assertEqual(report["mean_nll_by_part"], [report["mean_nll"]])
        self.assertIsNone(report["interval_95"])
        self.assertIn("perplexity", self.expect(0, *arguments).out)

    def test_a_limited_selection_is_judged_in_decode_only(self):
        memory = ('[memory]\nmodule = "memory_flash"\nmode = "{}"\ninterval = 7\nbudget = 0.05\n'
                  'recent_tokens = 0\nsink_tokens = 0\n[[memory.scorer]]\n'
                  'module = "scorer_recent"\n')
        text = self.write("t.txt", "It was a dark and stormy night; the rain fell in torrents. " * 8)
        ids = self.write("p.json", "[[1, 2, 3, 4, 5, 6, 7, 8]]")
        for mode in ("bounded", "direct", "exact"):
            manifest = self.manifest("b.toml", more=memory.format(mode))
            whole = ("eval", "perplexity", manifest, "-i", text)
            every = ("eval", "logits", manifest, "-i", ids, "-o", self.path("l.f32"), "--all")
            if mode == "exact":
                self.expect(0, *whole)
                self.expect(0, *every)
                continue
            self.expect_refused("--decode N", *whole)
            self.expect_refused("memory.mode=off", *every)
            # How a prompt is fed changes nothing behind it.
            losses = {json.loads(self.expect(0, *whole, "--decode", "20", "--json", "--set",
                                             f"engine.prefill_chunk={n}").out)["mean_nll"]
                      for n in (1, 7, 64)}
            self.assertEqual(len(losses), 1)

    def test_numbers_of_tokens_are_refused_in_words(self):
        text = self.write("t.txt", "It was a dark and stormy night.")
        for value in ("0", "-1", "1.5", "nan", "99999999999999999999"):
            result = self.expect(2, "eval", "perplexity", self.manifest(), "-i", text, "--decode",
                                 value)
            self.assertIn(f"--decode: {value}: want a whole number of 1 to", result.err)

    def test_the_interval_of_perplexity_is_student_s_over_parts_of_512(self):
        report = json.loads(self.expect(0, "eval", "perplexity", self.manifest(max_context=2048), "-i",
                                        DATA / "prose_heldout.txt", "--tokens", "1600", "--json").out)
        parts = report["mean_nll_by_part"]
        self.assertEqual(len(parts), 4)  # the last one has 64
        self.assertAlmostEqual(report["mean_nll"], (sum(parts[:3]) * 512 + parts[3] * 64) / 1600)
        half = 4.302653 * statistics.stdev(parts[:3]) / 3 ** 0.5  # 2 degrees of freedom
        self.assertAlmostEqual(report["interval_95"][0], report["mean_nll"] - half, places=6)
        self.assertAlmostEqual(report["interval_95"][1], report["mean_nll"] + half, places=6)

    def test_a_text_longer_than_the_context_is_refused(self):
        self.expect_refused("--tokens N", "eval", "perplexity", self.manifest(), "-i",
                            DATA / "prose_heldout.txt")
        self.expect_refused("want at least", "eval", "perplexity", self.manifest(), "-i",
                            self.write("t.txt", "short"), "--tokens", "500")


if __name__ == "__main__":
    unittest.main()
