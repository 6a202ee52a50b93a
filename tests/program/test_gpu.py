"""The program on a GPU, judged by the program on the CPU. tools/test_gpu.sh runs it; it needs the
environment of support.py, and EBB_CHECKS: the folder of endurance_check."""

import json
import os
import pathlib
import subprocess
import time
import unittest

from support import DATA, DEMO, ROOT, ProgramTest, stop
from test_dump import Tensors

CHECKS = pathlib.Path(os.environ["EBB_CHECKS"])
MANIFEST = DEMO / "demo.toml"
CHUNK = ("--set", "engine.prefill_chunk=512")
CPU = (*CHUNK, "--set", "compute.precision=exact")
GPU = (*CHUNK, "--set", "compute.module=compute_cuda")
TOO_MUCH = """
[engine]
max_context = 65536
max_sequences = 1024
[loader]
module = "loader_synthetic"
n_layers = 24
[compute]
module = "compute_cuda"
[comm]
module = "comm_self"
[attention]
module = "attention_csa"
[decoder]
module = "decoder_deepseek4"
"""
FULL_SHAPE = ROOT / "config" / "synthetic_v4_flash_cuda.toml"


class Answers(ProgramTest):
    def run_demo(self, name, *settings):
        self.expect(0, "run", MANIFEST, "-i", DEMO / "prompts.jsonl", "-o", self.path(name),
                    *settings, timeout=280)
        return {line["id"]: line for line in self.results(name)}

    def test_the_demo_gets_the_same_tokens_and_the_right_answers(self):
        cpu, gpu = self.run_demo("cpu.jsonl", *CPU), self.run_demo("gpu.jsonl", *GPU)
        answers = json.loads((DEMO / "expected.json").read_text())
        self.assertEqual(len(answers), 10)
        for name, answer in answers.items():
            self.assertEqual(gpu[name]["tokens"], cpu[name]["tokens"], name)
            self.assertEqual(gpu[name]["text"], answer, name)

    def test_the_same_needles_are_found(self):
        found = []
        for name, settings in (("cpu.jsonl", CPU), ("gpu.jsonl", GPU)):
            self.expect(0, "eval", "needles", MANIFEST, "-i", DATA / "needles.jsonl", "-o",
                        self.path(name), *settings, timeout=280)
            found.append({line["id"]: line["text"] for line in self.results(name)})
        right = sum(line["right"] for line in self.results("gpu.jsonl"))
        print(f"needles: {right} of {len(found[1])} right on the GPU")
        self.assertEqual(found[0], found[1])
        self.assertGreaterEqual(right, 0.9 * len(found[1]))

    def test_the_likelihood_of_a_text_agrees(self):
        want = json.loads((DATA / "prose_heldout.json").read_text())["mean_nll_by_512"]
        mean = sum(want) / len(want)
        for settings in (CPU, GPU):
            report = json.loads(self.expect(
                0, "eval", "perplexity", MANIFEST, "-i", DATA / "prose_heldout.txt", "--tokens",
                512 * len(want), "--json", *settings, timeout=280).out)
            print(f"likelihood: {report['mean_nll']:.6f}, want {mean:.6f}")
            self.assertAlmostEqual(report["mean_nll"], mean, delta=1e-3)

    def test_what_scorers_are_trained_from_is_the_same(self):
        lines = [{"id": "a", "tokens": [(j * 37) % 500 + 1 for j in range(700)]}]
        read = []
        for name, settings in (("cpu", CPU), ("gpu", GPU)):
            self.expect(0, "dump", MANIFEST, "-i", self.batch(lines), "-o", self.path(name),
                        "--every", "50", *settings)
            read.append(Tensors(self.folder / name / "000000.safetensors"))
        cpu, gpu = read
        self.assertEqual(cpu.shape, gpu.shape)
        for name, values in cpu.values.items():
            worst = max(map(abs, values))
            for one, other in zip(values, gpu.values[name], strict=True):
                self.assertAlmostEqual(one, other, delta=2e-3 * worst, msg=name)

    def test_needles_in_a_bounded_memory_are_the_same(self):
        needles = DATA.joinpath("needles.jsonl").read_text("utf-8").splitlines()
        some = self.write("some.jsonl", "\n".join(n for n in needles if '"id": "n4k-' in n))
        found = []
        for name, settings in (("cpu.jsonl", CPU), ("gpu.jsonl", GPU)):
            self.expect(0, "eval", "needles", DEMO / "bounded.toml", "-i", some, "-o",
                        self.path(name), *settings, timeout=280)
            found.append({line["id"]: line["text"] for line in self.results(name)})
            self.assertTrue(all(line["right"] for line in self.results(name)))
        self.assertEqual(found[0], found[1])

    def test_E3_with_and_without_a_graph_the_bits_are_the_same(self):
        # Prompts, decode, swapping and scorers beside the steps; then all logits of a prompt.
        lines = [{"id": f"r{i}", "tokens": [(j * 37 + i) % 500 + 1 for j in range(700)],
                  "max_tokens": 80, "ignore_eos": True} for i in range(2)]
        ids = self.write("ids.json", json.dumps([lines[0]["tokens"]]))
        tokens, logits, launches = [], [], []
        for graph in ("true", "false"):
            settings = (*GPU, "--set", f"compute.graph={graph}")
            self.expect(0, "run", DEMO / "bounded.toml", "-i", self.batch(lines), "-o",
                        self.path(f"{graph}.jsonl"), *settings, "--set", "engine.max_sequences=2",
                        "--set", "swap.slots=70", timeout=280)
            tokens.append({line["id"]: line["tokens"] for line in self.results(f"{graph}.jsonl")})
            self.expect(0, "eval", "logits", MANIFEST, "-i", ids, "-o", self.path("l.f32"), "--all",
                        *settings, timeout=280)
            logits.append((self.folder / "l.f32").read_bytes())
            self.expect(0, "bench", MANIFEST, *settings, "--frontiers", "512", "--new", "4",
                        "--json", self.path("b.json"))
            launches.append(json.loads((self.folder / "b.json").read_text())["rows"][0]["launches"])
        self.assertEqual(tokens[0], tokens[1])
        self.assertEqual(len(tokens[0]["r0"]), 80)
        self.assertTrue(logits[0] == logits[1], "other logits without a graph")
        self.assertEqual(launches[0], launches[1])  # nodes of the same recording

    def test_an_interrupted_run_goes_on_where_it_was(self):
        arguments = ("run", MANIFEST, "-i", DEMO / "prompts.jsonl", "-o", self.path("r.jsonl"),
                     *GPU)
        process = self.run_until_line(self.path("r.jsonl"), *arguments)
        self.assertEqual(stop(process), 130)
        n_before = len(self.results("r.jsonl"))
        self.assertLess(n_before, 10)
        self.expect(0, *arguments, "--resume")
        whole = self.run_demo("whole.jsonl", *GPU)
        self.assertEqual({line["id"]: line["tokens"] for line in self.results("r.jsonl")},
                         {name: line["tokens"] for name, line in whole.items()})


class Memory(ProgramTest):
    def test_a_long_run_takes_no_more_memory_and_repeats_its_bits(self):
        done = subprocess.run(
            [CHECKS / "endurance_check", "--context", "65536", "--steps", "1000", "--set",
             "compute.module=compute_cuda", "--set", "engine.prefill_chunk=2048"],
            capture_output=True, text=True, timeout=280)
        print(done.stdout, end="")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertNotIn("no driver", done.stdout)

    def test_what_is_planned_is_what_the_driver_counts(self):
        begin = time.monotonic()
        result = self.expect(0, "bench", FULL_SHAPE, "--set", "loader.n_layers=4", "--frontiers",
                             "2K", "--new", "16", "--json", self.path("b.json"), timeout=280)
        print(result.out, end="")
        print(f"bench: {time.monotonic() - begin:.1f} s in all")
        for row in json.loads((self.folder / "b.json").read_text())["rows"]:
            planned, taken = row["device_bytes_planned"], row["device_bytes_taken"]
            print(f"device memory: {planned} bytes planned, {taken} taken, "
                  f"{100 * (taken / planned - 1):+.2f} %")
            self.assertLess(abs(taken / planned - 1), 0.01)


    def test_the_plan_is_what_is_taken_to_the_byte(self):
        swap = ("--set", "swap.module=swap_lru", "--set", "swap.slots=64")
        for more in ((), swap, ("--set", "engine.max_sequences=3", "--set", "compute.precision=fast")):
            self.expect(0, "bench", MANIFEST, *GPU, *more, "--frontiers", "512", "--new", "1", "--json",
                        self.path("b.json"))
            taken = json.loads((self.folder / "b.json").read_text())["rows"][0]["device_bytes_planned"]
            plan = json.loads(self.expect(0, "plan", "--json", MANIFEST, *GPU, *more).out)
            self.assertEqual(plan["device"]["bytes"], taken)
            self.assertEqual(sum(part["bytes"] for part in plan["device"]["parts"]), taken)


class Faults(ProgramTest):
    """What goes wrong has its status and its line. A fault of the device in the middle of a run
    cannot be had by a manifest, so status 4 is seen on devices that are not there."""

    def test_more_than_the_limit_does_not_fit(self):
        self.expect_refused("memory_limit", "check", MANIFEST, *GPU, "--set",
                            "compute.memory_limit=1MiB", status=3)

    def test_more_than_the_device_has_does_not_fit(self):
        self.expect_refused("the device has", "check", self.write("m.toml", TOO_MUCH), status=3)

    def test_a_device_that_is_not_there_is_a_fault(self):
        self.expect_refused("device = 63", "check", MANIFEST, *GPU, "--set", "compute.device=63",
                            status=4)
        hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
        result = self.expect(4, "check", MANIFEST, *GPU, env=hidden)
        self.assertIn("0 CUDA devices", result.err)


if __name__ == "__main__":
    unittest.main()
