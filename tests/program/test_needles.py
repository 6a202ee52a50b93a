"""tools/make_needles.py, and how `ebb eval needles` judges what it makes."""

import json
import re
import subprocess
import sys
import unittest

from support import DATA, EBB, ROOT, ProgramTest

PROSE = DATA / "prose_heldout.txt"
MAKE = ROOT / "tools" / "make_needles.py"


class MakeNeedles(ProgramTest):
    def make(self, *arguments, name="n.jsonl", status=0, text=PROSE):
        done = subprocess.run([sys.executable, "-B", MAKE, text, "-o", self.path(name),
                               *map(str, arguments)], capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return self.results(name) if status == 0 else done.stderr

    def test_the_same_arguments_make_the_same_file(self):
        self.make("--task", "all", "--lengths", "1K,2K", "--count", 3)
        self.make("--task", "all", "--lengths", "1K,2K", "--count", 3, name="again.jsonl")
        self.assertEqual((self.folder / "n.jsonl").read_bytes(),
                         (self.folder / "again.jsonl").read_bytes())
        # A needle does not depend on its neighbours in the file, apart from the spread of depths.
        few = self.make("--task", "single", "--lengths", "2K", "--count", 3, name="few.jsonl")
        self.assertEqual(few, [line for line in self.results("n.jsonl") if line["task"] == "single"
                               and line["length"] == 2048])
        other = self.make("--task", "single", "--lengths", "2K", "--count", 3, "--seed", 1)
        self.assertFalse({line["prompt"] for line in other} & {line["prompt"] for line in few})

    def test_every_fact_stands_once_where_it_should(self):
        lines = self.make("--task", "all", "--lengths", "1K,4K", "--count", 5)
        self.assertEqual(len(lines), 4 * 2 * 5)
        self.assertEqual(len({line["id"] for line in lines}), 40)
        for line in lines:
            body, question = line["prompt"].split("<｜User｜>")
            self.assertTrue(body.startswith("<｜begin▁of▁sentence｜>"))
            self.assertTrue(question.endswith("?<｜Assistant｜></think>"))
            if line["task"] == "variables":
                value = re.search(r"value (\d+)", question)[1]
                names = line["answers"]
                chain = [f"VAR {names[0]} = {value}."]
                chain += [f"VAR {b} = VAR {a}." for a, b in zip(names, names[1:])]
                places = [body.index(fact) for fact in chain]
                self.assertEqual(places, sorted(places))
                self.assertEqual(len(re.findall(r"VAR \w+ = ", body)), 8)
                continue
            sort, name = re.search(r"(?:is the|are the) ([a-z]+ [a-z]+?)s? of ([\w ]+)\?",
                                   question).groups()
            answers = line.get("answers") or [line["answer"]]
            self.assertEqual(len(answers), 4 if line["task"] == "multi_value" else 1)
            for answer in answers:
                self.assertEqual(len(re.findall(rf"\b{answer}\b", body)), 1)
            self.assertEqual(body.count(name), len(answers))
            self.assertEqual(body.count(sort), 4 if line["task"].startswith("multi") else 1)
            if line["task"] != "multi_value":
                self.assertAlmostEqual(body.index(answers[0]) / len(body), line["depth"], delta=0.1)
        for length in (1024, 4096):
            depths = [line["depth"] for line in lines
                      if line["task"] == "single" and line["length"] == length]
            self.assertEqual([int((depth - 0.02) / 0.96 * 5) for depth in depths], [0, 1, 2, 3, 4])

    def test_lengths_are_kept_by_bytes_or_by_the_model_s_tokens(self):
        for line in self.make("--lengths", "1K,8K", "--count", 4):
            size = len(line["prompt"].encode())
            self.assertLess(size, line["length"] * 3.7)
            self.assertGreater(size, line["length"] * 3.7 * 0.85)
            self.assertNotIn("n_tokens", line)
        manifest = self.manifest(max_context=65536)
        lines = self.make("--task", "all", "--lengths", "1K,8K", "--count", 3, "--manifest", manifest,
                          "--program", EBB)
        counted = [json.loads(line) for line in
                   self.expect(0, "eval", "needles", manifest, "-i", self.path("n.jsonl"),
                               "--count").out.splitlines()]
        self.assertEqual([(line["id"], line["n_tokens"]) for line in lines],
                         [(line["id"], line["n_tokens"]) for line in counted])
        for line in lines:
            self.assertLessEqual(line["n_tokens"], line["length"])
            self.assertGreater(line["n_tokens"], 0.85 * line["length"])
        result = self.expect(0, "eval", "needles", DATA.parents[1] / "config/demo/demo.toml", "-i",
                             DATA / "needles.jsonl", "--count")
        self.assertEqual([json.loads(line)["n_tokens"] for line in result.out.splitlines()],
                         [json.loads(line)["n_tokens"] for line in
                          (DATA / "needles.jsonl").read_text("utf-8").splitlines()])

    def test_the_bundled_model_finds_single_needles_and_one_of_several_keys(self):
        manifest = self.manifest(max_context=1024, max_sequences=4)
        self.make("--task", "single,multi_key", "--lengths", "1K", "--count", 4, "--manifest",
                  manifest, "--program", EBB)
        out = self.expect(0, "eval", "needles", manifest, "-i", self.path("n.jsonl")).out
        rows = re.findall(r"(?m)^ *([a-z_]+)(?: <=1024)? +(\d)/(\d) +[\d.]+ +([\d.]+) to ([\d.]+) ", out)
        self.assertEqual([(name, n) for name, _, n, _, _ in rows],
                         [("multi_key", "4"), ("single", "4"), ("all", "8")])
        self.assertGreaterEqual(int(rows[2][1]), 6)
        for _, right, n, low, high in rows:
            p, n, z = int(right) / int(n), int(n), 1.959964  # Wilson's interval
            middle = (p + z * z / (2 * n)) / (1 + z * z / n)
            half = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5 / (1 + z * z / n)
            self.assertAlmostEqual(float(low), 100 * (middle - half), delta=0.051)
            self.assertAlmostEqual(float(high), 100 * (middle + half), delta=0.051)

    def test_of_several_answers_each_has_to_be_there_as_a_word(self):
        needle = json.loads((DATA / "needles.jsonl").read_text("utf-8").splitlines()[0])
        answer = needle.pop("answer")
        cases = {"one": ([answer], 1, True), "both": ([answer, answer], 2, True),
                 "missing": ([answer, "4"], 1, False), "part": ([answer[:-1]], 0, False),
                 "end": ([answer[1:]], 0, False)}
        batch = self.batch([dict(needle, id=name, answers=answers)
                            for name, (answers, _, _) in cases.items()])
        self.expect(0, "eval", "needles", self.manifest(max_context=1024), "-i", batch, "-o",
                    self.path("o.jsonl"))
        got = {line["id"]: line for line in self.results("o.jsonl")}
        for name, (answers, found, right) in cases.items():
            self.assertEqual((got[name]["answer"], got[name]["found"], got[name]["right"]),
                             (answers, found, right))

    def test_what_cannot_be_made_is_refused(self):
        for arguments, says in ((("--task", "haystack"), "--task haystack"),
                                (("--lengths", "1K,x"), "x: want"),
                                (("--lengths", "1K,2K,1024"), "1024 stands in it twice"),
                                (("--task", "single,single"), "single stands in it twice"), (("--lengths", "8"), "8: want"),
                                (("--count", "0"), "0: want"),
                                (("--task", "multi_key", "--keys", "100000"), "100000: want 1..1000"),
                                (("--task", "multi_value", "--values", "200", "--lengths", "1K"),
                                 "200 facts do not fit into 1024 tokens: want 128"),
                                (("--bytes-per-token", "0"), "--bytes-per-token")):
            self.assertIn(says, self.make(*arguments, status=2))
        self.assertIn("no-such-file", self.make(status=2, text="no-such-file"))
        self.assertIn("10 or more", self.make(status=2, text=self.write("t.txt", "Too. Short.")))
        self.assertIn("more than 40 tokens", self.make("--lengths", "40", "--manifest",
                                                       self.manifest(), "--program", EBB, status=1))
        for program, says in ((self.path("none"), "No such file"), (self.folder, "Permission denied"),
                              ("/bin/true", "is no ebb"), ("/bin/echo", "is no ebb")):
            err = self.make("--manifest", self.manifest(), "--program", program, status=1)
            self.assertRegex(err, rf"\Amake_needles.py: --program {program}.*{says}.*\n\Z")
        for name, says in (("no/n.jsonl", "No such file"), ("", "Is a directory")):
            err = self.make("--lengths", "256", name=name, status=1)
            self.assertRegex(err, rf"\Amake_needles.py: --output .*{says}.*\n\Z")
        for line in ({"id": "a", "prompt": "x", "answer": "y", "answers": ["y"]},
                     {"id": "a", "prompt": "x", "answers": []},
                     {"id": "a", "prompt": "x", "answers": ["y", 3]}):
            self.expect_refused("p.jsonl:1: want id", "eval", "needles", self.manifest(), "-i",
                                self.batch([line]))


class MakeDocuments(ProgramTest):
    """tools/train_scorer/make_documents.py, which needs no package."""

    def make(self, *arguments, status=0):
        script = ROOT / "tools" / "train_scorer" / "make_documents.py"
        done = subprocess.run([sys.executable, "-B", script, *map(str, arguments)],
                              capture_output=True, text=True, timeout=120)
        self.assertEqual(done.returncode, status, done.stderr)
        return done.stderr

    def test_each_document_has_its_questions(self):
        self.make(PROSE, "-o", self.path("d.jsonl"), "-n", 3, "--tokens", 100, 200)
        lines = self.results("d.jsonl")
        self.assertEqual([line["id"] for line in lines], ["d0-0000", "d0-0001", "d0-0002"])
        for line in lines:
            body, *turns = line["prompt"].split("<｜User｜>")
            for turn in turns:
                answer = re.search(r"</think>(\d+)<", turn)[1]
                self.assertIn(answer, body)

    def test_what_cannot_be_made_is_told_in_a_line(self):
        empty = self.write("empty.txt", "\n \n")
        out = self.path("d.jsonl")
        for arguments, says in (((self.path("none.txt"), "-o", out), "none.txt: No such file"),
                                ((self.folder, "-o", out), "Is a directory"),
                                ((empty, "-o", out), "no text"),
                                ((PROSE, "-o", self.path("no/d")), "no/d: No such file"),
                                ((PROSE, "-o", "/dev/full"), "No space left"),
                                ((PROSE, "-o", out, "-n", 0), "-n: '0': want a whole number"),
                                ((PROSE, "-o", out, "-n", "1e3"), "-n: '1e3': want a whole number"),
                                ((PROSE, "-o", out, "--seed", "-1"), "--seed: '-1': want"),
                                ((PROSE, "-o", out, "--questions", 0), "'0': want .* 1 to 1000"),
                                ((PROSE, "-o", out, "--tokens", 0, 9), "--tokens: '0': want"),
                                ((PROSE, "-o", out, "--tokens", 9, 8), "the smaller number first"),
                                ((PROSE, "-o", out, "--tokens", 9), "--tokens: expected 2"),
                                ((PROSE, "-o", out, "--characters-per-token", "nan"), "'nan': want"),
                                ((PROSE,), "required: -o"), ((), "required: TEXT")):
            err = self.make(*arguments, status=2)
            self.assertRegex(err, rf"\Amake_documents.py: .*{says}.*\n\Z")
        self.assertFalse((self.folder / "d.jsonl").exists())


if __name__ == "__main__":
    unittest.main()
