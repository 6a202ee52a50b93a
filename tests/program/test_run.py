"""ebb run: results, resuming at any point, locks, signals."""

import fcntl
import json
import os
import pathlib
import re
import signal
import subprocess
import unittest

try:
    import tomllib
except ImportError:  # Python 3.10
    tomllib = None

from support import DATA, DEMO, EBB, ProgramTest, stop

SHORT = [{"id": "a", "prompt": "It was a dark", "max_tokens": 6},
         {"id": "b", "tokens": [0, 53, 1022, 717], "max_tokens": 5},
         {"custom_id": "c", "body": {"messages": [{"role": "user", "content": "hi"}],
                                     "max_tokens": 4}}]


def long_batch(n=6, max_tokens=120):
    return [{"id": f"n{i}", "tokens": [0, 300 + i, 400], "max_tokens": max_tokens,
             "ignore_eos": True} for i in range(n)]


class Run(ProgramTest):
    def run_batch(self, lines, *more, status=0, manifest=None, output="r.jsonl"):
        return self.expect(status, "run", manifest or self.manifest(), "-i", self.batch(lines),
                           "-o", self.path(output), *more)

    def test_every_request_has_one_complete_result(self):
        self.run_batch(SHORT)
        results = {line["id"]: line for line in self.results()}
        self.assertEqual(sorted(results), ["a", "b", "c"])
        for name, line in results.items():
            self.assertIsNone(line["error"])
            self.assertIn(line["finish_reason"], ("stop", "length"))
            self.assertIsInstance(line["text"], str)
            self.assertEqual(line["usage"]["completion_tokens"], len(line["tokens"]))
            self.assertEqual(line["usage"]["total_tokens"],
                             line["usage"]["prompt_tokens"] + len(line["tokens"]))
            for key in ("queue_s", "prefill_s", "decode_s", "prefill_tokens_per_s",
                        "decode_tokens_per_s"):
                self.assertGreaterEqual(line["timings"][key], 0)
            self.assertEqual(sorted(line["provenance"]),
                             ["abi", "manifest", "max_tokens", "model", "request", "seed",
                              "version"])
        self.assertEqual(results["b"]["usage"]["prompt_tokens"], 4)
        self.assertEqual(len(results["a"]["tokens"]), 6)

    def test_swapping_is_counted_per_request_and_changes_no_token(self):
        lines = [{"id": f"s{i}", "tokens": [0] + [300 + (37 * i + 11 * k) % 3000 for k in range(390)],
                  "max_tokens": 40, "ignore_eos": True} for i in range(2)]
        self.run_batch(lines)
        plain = self.results()
        self.assertTrue(all(line["swap"] is None for line in plain))
        for staging in ("demand", "zero_copy"):
            swap = f'[swap]\nmodule = "swap_lru"\nslots = 64\nstaging = "{staging}"\n'
            self.run_batch(lines, manifest=self.manifest("swap.toml", more=swap),
                           output=f"{staging}.jsonl")
            results = self.results(f"{staging}.jsonl")
            self.assertEqual([line["tokens"] for line in results],
                             [line["tokens"] for line in plain])
            for line in results:
                swap = line["swap"]
                # 391 + 39 tokens are fed; 4 layers select 64 of up to 107 chunks.
                self.assertEqual(swap["stores"], 4 * (430 // 4))
                self.assertEqual(swap["selections"], 4 * 39 * 64)
                self.assertEqual(swap["hits"] + swap["misses"], swap["distinct"])
                self.assertEqual(swap["born"] + swap["misses"] - swap["pool_reads"]
                                 + swap["promotions"], swap["evictions"] + swap["freed"])
                self.assertGreater(swap["misses"], 0)
                self.assertEqual(swap["refused"], 0)

    def test_the_effective_manifest_lies_beside_the_results(self):
        self.run_batch(SHORT[:1], "--set", "engine.max_context=300")
        text = (self.folder / "r.jsonl.manifest.toml").read_text()
        self.assertIn("300", text)
        if tomllib:
            self.assertEqual(tomllib.loads(text)["engine"]["max_context"], 300)

    def test_a_batch_gives_the_same_tokens_as_one_at_a_time(self):
        lines = SHORT + [{"id": f"t{i}", "tokens": [0, 200 + i], "max_tokens": 3 + 4 * i,
                          "temperature": 0.9, "seed": i} for i in range(4)]
        self.run_batch(lines, output="one.jsonl")
        self.run_batch(lines, manifest=self.manifest(max_sequences=3), output="three.jsonl")
        one = {line["id"]: line["tokens"] for line in self.results("one.jsonl")}
        three = {line["id"]: line["tokens"] for line in self.results("three.jsonl")}
        self.assertEqual(one, three)

    def test_seeds_decide_and_repeat(self):
        lines = [{"id": name, "tokens": [0, 300], "max_tokens": 12, "temperature": 1.5,
                  "seed": seed} for name, seed in (("x", 1), ("y", 1), ("z", 2))]
        self.run_batch(lines)
        tokens = {line["id"]: line["tokens"] for line in self.results()}
        self.assertEqual(tokens["x"], tokens["y"])
        self.assertNotEqual(tokens["x"], tokens["z"])

    def test_stop_texts_cut_the_text(self):
        self.run_batch([dict(SHORT[0], max_tokens=30)])
        text = self.results()[0]["text"]
        needle = text[5:8]
        self.run_batch([dict(SHORT[0], max_tokens=30, stop=[needle])], output="cut.jsonl")
        line = self.results("cut.jsonl")[0]
        self.assertEqual(line["text"], text[:text.index(needle)])
        self.assertEqual(line["finish_reason"], "stop")

    def test_a_full_sequence_ends_by_context(self):
        self.run_batch([{"id": "a", "tokens": [0] * 30, "max_tokens": 50, "ignore_eos": True}],
                       "--set", "engine.max_context=32")
        line = self.results()[0]
        self.assertEqual(line["finish_reason"], "context")
        self.assertEqual(len(line["tokens"]), 3)  # two are fed, the third needs no place

    def test_requests_that_cannot_be_served_get_an_error_and_the_rest_is_served(self):
        bad = [{"id": "long", "tokens": [0] * 600},
               {"id": "vocabulary", "tokens": [4096]},
               {"id": "empty", "tokens": []},
               {"id": "role", "messages": [{"role": "robot", "content": "x"}]},
               {"custom_id": "two", "body": {"prompt": "x", "n": 2}}]
        result = self.run_batch(bad[:2] + SHORT[:1] + bad[2:], status=1)
        self.assertIn("5 failed", result.err)
        results = {line["id"]: line for line in self.results()}
        self.assertEqual(len(results), 6)
        self.assertIsNone(results["a"]["error"])
        for line in bad:
            name = line.get("id") or line["custom_id"]
            self.assertEqual(results[name]["error"]["code"], "invalid_argument")
            self.assertIsNone(results[name]["text"])
        self.assertIn("600 tokens", results["long"]["error"]["message"])
        self.assertIn("max_context", results["long"]["error"]["message"])
        self.assertIn("robot", results["role"]["error"]["message"])

    def test_lines_that_are_no_request_stop_the_run_before_it_begins(self):
        manifest = self.manifest()
        for number, (line, says) in enumerate((("{", "JSON"), ('{"id": "a", "prompt": 1}', "prompt"),
                                               ('{"id": "ok", "prompt": "x"}', "line 1"),
                                               ('{"id": "b", "prompt": "x", "m": 1}', "m;"))):
            batch = self.write("p.jsonl", '{"id": "ok", "prompt": "x"}\n' + line + "\n")
            result = self.expect_refused("p.jsonl:2: ", "run", manifest, "-i", batch, "-o",
                                         self.path("r.jsonl"))
            self.assertIn(says, result.err)
            self.assertFalse((self.folder / "r.jsonl").exists(), number)
        self.expect_refused("none.jsonl: no such file", "run", manifest, "-i",
                            self.path("none.jsonl"), "-o", self.path("r.jsonl"))

    def test_a_model_that_is_refused_leaves_no_file(self):
        before = sorted(path.name for path in self.folder.iterdir())
        self.run_batch(SHORT, manifest=self.manifest(model="missing.gguf"), status=2)
        after = sorted(path.name for path in self.folder.iterdir())
        self.assertEqual(after, sorted(before + ["m.toml", "p.jsonl"]))

    def test_requests_can_come_from_standard_input(self):
        text = json.dumps(SHORT[0])
        self.expect(0, "run", self.manifest(), "-i", "-", "-o", self.path("r.jsonl"), input=text)
        self.assertEqual(len(self.results()), 1)

    def test_existing_results_are_only_touched_by_resume(self):
        self.run_batch(SHORT[:1])
        before = (self.folder / "r.jsonl").read_bytes()
        self.expect_refused("--resume", "run", self.path("m.toml"), "-i", self.path("p.jsonl"),
                            "-o", self.path("r.jsonl"))
        self.assertEqual((self.folder / "r.jsonl").read_bytes(), before)

    def test_resume_does_what_is_missing_and_repairs_a_torn_line(self):
        self.run_batch(SHORT)
        output = self.folder / "r.jsonl"
        whole = output.read_bytes()
        tokens = {line["id"]: line["tokens"] for line in self.results()}
        start = whole.rindex(b"\n", 0, len(whole) - 1) + 1
        for cut in (start, start + 1, (start + len(whole)) // 2, len(whole) - 1, len(whole)):
            output.write_bytes(whole[:cut])
            self.expect(0, "run", self.path("m.toml"), "-i", self.path("p.jsonl"), "-o", output,
                        "--resume")
            self.assertTrue(output.read_bytes().startswith(whole[:start]))
            self.assertEqual({line["id"]: line["tokens"] for line in self.results()}, tokens)
            self.assertEqual(len(self.results()), 3)

    def test_resume_of_a_run_with_failures_says_so_again(self):
        lines = [SHORT[0], {"id": "long", "tokens": [0] * 600}]
        self.run_batch(lines, status=1)
        self.run_batch(lines, "--resume", status=1)
        self.assertEqual(len(self.results()), 2)

    def test_resume_refuses_results_of_another_model_and_warns_of_another_manifest(self):
        self.run_batch(SHORT[:1])
        more = SHORT[:2]
        result = self.run_batch(more, "--resume", "--set", "engine.prefill_chunk=32")
        self.assertIn("warning", result.err)
        self.assertEqual(len({line["provenance"]["manifest"] for line in self.results()}), 2)
        other = (self.folder / "r.jsonl").read_text()
        digest = self.results()[0]["provenance"]["model"]
        self.write("r.jsonl", other.replace(digest, "0" * len(digest)))
        self.expect_refused("another", "run", self.path("m.toml"), "-i", self.batch(SHORT), "-o",
                            self.path("r.jsonl"), "--resume")

    def test_resume_refuses_answers_of_another_length(self):
        lines = [{"id": "a", "tokens": [0, 300]}, {"id": "b", "tokens": [0, 301], "max_tokens": 2}]
        self.run_batch(lines[1:], "-n", "5")
        self.run_batch(lines, "--resume", "-n", "7")  # b says its own
        before = (self.folder / "r.jsonl").read_bytes()
        arguments = ("run", self.path("m.toml"), "-i", self.path("p.jsonl"), "-o",
                     self.path("r.jsonl"), "--resume")
        result = self.expect_refused("id a of ", *arguments, "-n", "6")
        self.assertIn("p.jsonl:1 has a result with max_tokens 7, now it is 6: say -n 7", result.err)
        self.assertEqual((self.folder / "r.jsonl").read_bytes(), before)
        self.expect(0, *arguments, "-n", "7")
        self.assertEqual({line["id"]: line["provenance"]["max_tokens"] for line in self.results()},
                         {"a": 7, "b": 2})

    def test_resume_refuses_answers_to_other_questions(self):
        line = {"id": "a", "tokens": [0, 300], "max_tokens": 2}
        self.run_batch([line])
        before = (self.folder / "r.jsonl").read_bytes()
        for other in (dict(line, tokens=[0, 301]), dict(line, temperature=0.5),
                      dict(line, max_tokens=3)):
            self.expect_refused("id a of ", "run", self.path("m.toml"), "-i",
                                self.batch([other, {"id": "b", "tokens": [1], "max_tokens": 1}]),
                                "-o", self.path("r.jsonl"), "--resume")
            self.assertEqual((self.folder / "r.jsonl").read_bytes(), before)
        same = self.write("p.jsonl", '{ "max_tokens": 2,\t"tokens": [0,300], "id" : "a"}\n')
        self.expect(0, "run", self.path("m.toml"), "-i", same, "-o", self.path("r.jsonl"), "--resume")
        self.assertEqual((self.folder / "r.jsonl").read_bytes(), before)
        # Results that do not say, of an earlier version, are taken as they are.
        result = json.loads(before)
        del result["provenance"]["request"], result["provenance"]["max_tokens"]
        self.write("r.jsonl", json.dumps(result) + "\n")
        self.run_batch([dict(line, tokens=[0, 302])], "--resume")

    def test_keys_that_stand_twice_are_refused_by_name(self):
        manifest = self.manifest()
        for text, key in (('{"id": "a", "prompt": "x", "max_tokens": 1, "max_tokens": 2}', "max_tokens"),
                          ('{"custom_id": "a", "body": {"prompt": "x", "seed": 1, "seed": 1}}', "seed"),
                          ('{"id": "a", "messages": [{"role": "user", "role": "user"}]}', "role")):
            self.expect_refused(f"p.jsonl:1: key {key} stands twice in one object", "run", manifest,
                                "-i", self.write("p.jsonl", text + "\n"), "-o",
                                self.path("r.jsonl"))
        # Equal keys of different objects are none of it.
        self.run_batch([{"id": "a", "messages": [{"role": "user", "content": "x"},
                                                 {"role": "user", "content": "y"}], "max_tokens": 1}])

    def test_resume_touches_no_file_that_a_run_did_not_write(self):
        manifest, batch = self.manifest(), self.batch(SHORT)
        for content in (b"my thesis", b'{"name": 1}', b"{", b'{"id"x', bytes(range(256)),
                        b'{"id":"a","tokens":[1]}\n', b'{"id":"a","tokens":[1]}'):
            path = self.write("r.jsonl", content)
            if content == b"{":  # may be the first byte of ours
                self.expect(0, "run", manifest, "-i", batch, "-o", path, "--resume")
                continue
            self.expect_refused("no result of a run", "run", manifest, "-i", batch, "-o", path,
                                "--resume")
            self.assertEqual(pathlib.Path(path).read_bytes(), content)
        self.expect_refused("named by --input and by --output", "run", manifest, "-i", batch, "-o",
                            batch, "--resume")

    def test_a_reader_who_leaves_stderr_ends_no_run(self):
        manifest, batch = self.manifest(), self.batch(SHORT)
        read_end, write_end = os.pipe()
        process = subprocess.Popen([EBB, "run", manifest, "-i", batch, "-o", self.path("r.jsonl")],
                                   stderr=write_end)
        os.close(read_end)
        os.close(write_end)
        self.assertEqual(process.wait(timeout=120), 0)
        self.assertEqual(len(self.results()), 3)

    def test_a_locked_output_is_refused(self):
        manifest, batch = self.manifest(), self.batch(SHORT)
        with open(self.path("r.jsonl"), "w") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            self.expect_refused("another run", "run", manifest, "-i", batch, "-o",
                                self.path("r.jsonl"))

    def test_the_record_of_the_manifest_replaces_nothing_that_the_run_reads(self):
        for name in ("manifest", "input"):
            record = self.path("r.jsonl.manifest.toml")
            manifest = self.manifest("r.jsonl.manifest.toml" if name == "manifest" else "m.toml")
            batch = self.batch(SHORT, "r.jsonl.manifest.toml" if name == "input" else "p.jsonl")
            before = pathlib.Path(record).read_text()
            says = f"named by {'MANIFEST' if name == 'manifest' else '--input'} and by the record of"
            self.expect_refused(says, "run", manifest, "-i", batch, "-o", self.path("r.jsonl"))
            self.assertEqual(pathlib.Path(record).read_text(), before)
            self.assertFalse((self.folder / "r.jsonl").exists())
            pathlib.Path(record).unlink()
        (self.folder / "r.jsonl.manifest.toml").mkdir()
        self.expect_refused("r.jsonl.manifest.toml: not a regular file", "run",
                            self.manifest(), "-i", self.batch(SHORT), "-o", self.path("r.jsonl"))
        self.assertFalse((self.folder / "r.jsonl").exists())

    def test_an_output_that_cannot_be_written_is_refused(self):
        self.expect_refused("nowhere", "run", self.manifest(), "-i", self.batch(SHORT), "-o",
                            self.path("nowhere/r.jsonl"))

    def test_an_interrupted_run_keeps_its_results_and_can_be_resumed(self):
        manifest, batch = self.manifest(), self.batch(long_batch())
        self.expect(0, "run", manifest, "-i", batch, "-o", self.path("whole.jsonl"))
        want = {line["id"]: line["tokens"] for line in self.results("whole.jsonl")}
        for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 130),
                               (signal.SIGKILL, -signal.SIGKILL)):
            output = pathlib.Path(self.path(f"r{int(number)}.jsonl"))
            arguments = ("run", manifest, "-i", batch, "-o", output)
            self.assertEqual(stop(self.run_until_line(output, *arguments), number), status)
            self.assertLess(len(output.read_text().splitlines()), 6)
            self.expect(0, *arguments, "--resume")
            got = self.results(output.name)
            self.assertEqual(len(got), 6)
            self.assertEqual({line["id"]: line["tokens"] for line in got}, want)

    def test_progress_is_plain_lines_where_there_is_no_terminal(self):
        lines = self.run_batch(SHORT).err.splitlines()
        self.assertEqual([line.split()[0] for line in lines[:3]], ["1/3", "2/3", "3/3"])
        self.assertNotIn("\r", "".join(lines))

    def test_a_request_whose_logits_are_no_numbers_fails_alone(self):
        source = DATA / "models" / "tiny_kmix.gguf"
        table = next(t for t in json.loads(self.expect(0, "inspect", "--json", source).out)["tensors"]
                     if t["name"] == "token_embd.weight")
        row = 2 * table["shape"][0]  # BF16
        begin = int(re.search(r"data at (\d+)", table["place"]).group(1))
        model = bytearray(source.read_bytes())
        model[begin + 7 * row:begin + 8 * row] = b"\xff" * row  # token 7 is all NaN
        (self.folder / "nan.gguf").write_bytes(model)
        manifest = self.manifest(model=self.path("nan.gguf"), tokenizer=False, max_sequences=2)
        lines = [{"id": str(n), "tokens": [1, 2, n], "max_tokens": 4} for n in (5, 7, 6)]
        lines.insert(2, {"id": "warm", "tokens": [7], "max_tokens": 4, "temperature": 1, "seed": 1})
        result = self.expect(1, "run", manifest, "-i", self.batch(lines), "-o",
                             self.path("r.jsonl"))
        self.assertIn("2 failed", result.err)
        results = {line["id"]: line for line in self.results()}
        self.assertEqual(len(results), 4)
        for name in ("7", "warm"):
            self.assertIn("new token 1: the model's logits are no numbers",
                          results[name]["error"]["message"])
        healthy = self.manifest("h.toml", model=source, tokenizer=False)
        kept = [line for line in lines if line["id"] in ("5", "6")]
        self.expect(0, "run", healthy, "-i", self.batch(kept), "-o", self.path("h.jsonl"))
        for line in self.results("h.jsonl"):
            self.assertEqual(results[line["id"]]["tokens"], line["tokens"])

    def test_a_stderr_that_is_closed_or_full_ends_no_run(self):
        manifest, batch = self.manifest(), self.batch(SHORT)

        def status(end, *arguments):
            return subprocess.run(["sh", "-c", f'exec "$@" {end}', "sh", EBB, *arguments],
                                  timeout=120, stdout=subprocess.DEVNULL).returncode

        for name, end in (("closed.jsonl", "2>&-"), ("full.jsonl", "2>/dev/full")):
            self.assertEqual(status(end, "run", manifest, "-i", batch, "-o", self.path(name)), 0)
            self.assertEqual([line["id"] for line in self.results(name)], ["a", "b", "c"])
            self.assertEqual(status(end, "check", self.path("absent.toml")), 2)


class Generate(ProgramTest):
    def test_streams_the_text_that_run_writes(self):
        manifest = self.manifest()
        self.expect(0, "run", manifest, "-i", self.batch([dict(SHORT[0], max_tokens=20)]), "-o",
                    self.path("r.jsonl"))
        for form in ((), ("--raw",)):
            result = self.expect(0, "generate", manifest, "-p", "It was a dark", "-n", "20", *form)
            self.assertEqual(result.out, self.results()[0]["text"] + "\n")
            self.assertRegex(result.err, r"^prefill \d+ tokens .*decode 20 tokens .*, length$")

    def test_settings_that_are_no_numbers_are_refused(self):
        for flag in ("--temp", "--top-p"):
            result = self.expect(2, "generate", self.manifest(), "-p", "x", flag, "nan")
            self.assertIn("want a number", result.err)
        self.expect(2, "generate", self.manifest(), "-f", "")

    def test_reads_the_prompt_from_a_file_and_from_standard_input(self):
        manifest = self.manifest()
        want = self.expect(0, "generate", manifest, "-p", "It was", "-n", "5").out
        file = self.write("prompt.txt", "It was")
        self.assertEqual(self.expect(0, "generate", manifest, "-f", file, "-n", "5").out, want)
        self.assertEqual(self.expect(0, "generate", manifest, "-f", "-", "-n", "5",
                                     input="It was").out, want)

    def test_chat_and_specials_make_the_same_prompt(self):
        manifest = self.manifest()
        chat = self.expect(0, "generate", manifest, "--chat", "-p", "hi", "-n", "6")
        specials = self.expect(
            0, "generate", manifest, "--specials", "-n", "6", "-p",
            "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜></think>")
        self.assertEqual(chat.out, specials.out)
        self.assertEqual(chat.err.split(" in ")[0], specials.err.split(" in ")[0])

    def test_a_model_without_a_tokenizer_is_refused(self):
        self.expect_refused("[tokenizer]", "generate",
                            self.manifest(model=DATA / "models" / "tiny_kmix.gguf",
                                          tokenizer=False), "-p", "x")

    def test_a_prompt_that_is_too_long_is_refused(self):
        self.expect_refused("max_context", "generate", self.manifest(max_context=4), "-p",
                            "It was a dark and stormy night")


if __name__ == "__main__":
    unittest.main()
