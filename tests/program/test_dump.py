"""ebb dump: the model's own selection can be computed from it, and what is refused."""

import json
import math
import operator
import os
import pathlib
import signal
import struct
import subprocess
import time
import unittest

from support import DATA, DEMO, EBB, ProgramTest

SWAP = '[swap]\nmodule = "swap_lru"\nslots = 64\nstaging = "demand"\n'
TYPES = {"F32": "f", "I32": "i", "I64": "q", "BF16": "H"}


class Tensors:
    """A .safetensors file: tensors by name, flat, and their shapes."""

    def __init__(self, path):
        data = pathlib.Path(path).read_bytes()
        size, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + size])
        self.about = header.pop("__metadata__")
        self.shape = {name: entry["shape"] for name, entry in header.items()}
        self.type = {name: entry["dtype"] for name, entry in header.items()}
        self.values, end = {}, 0
        for name, entry in header.items():
            first, last = entry["data_offsets"]
            assert first == end, "a hole"
            end = last
            count = math.prod(entry["shape"])
            self.values[name] = struct.unpack_from(f"<{count}{TYPES[entry['dtype']]}", data,
                                                   8 + size + first)
        assert 8 + size + end == len(data)

    def row(self, name, i):
        width = math.prod(self.shape[name][1:])
        return self.values[name][i * width:(i + 1) * width]


def dot(a, b):
    return math.fsum(map(operator.mul, a, b))


def logits(tensors, about, layer, row):
    """The model's own, of the chunks that the row's token sees."""
    d, n_heads = about["d"], about["n_heads"]
    q = tensors.row(f"index_q_layer_{layer}", row)
    weight = tensors.row(f"index_weight_layer_{layer}", row)
    visible = (tensors.values["positions"][row] + 1) // about["ratio"]
    keys = [tensors.row(f"keys_layer_{layer}", chunk) for chunk in range(visible)]
    return [sum(weight[h] * about["weight_scale"] * max(0.0, dot(q[h * d:(h + 1) * d], key))
                for h in range(n_heads)) for key in keys]


def yarn(rope):
    """Frequencies from the model's constants, by the definition."""
    of = {key.split("rope.")[-1]: value for key, value in rope["metadata"].items()
          if "compress" not in key}
    base = next(value for key, value in rope["metadata"].items() if "compress" in key)
    n, factor = rope["n_pairs"], of["scaling.factor"]

    def pair_of(turns):
        return (2 * n * math.log(of["scaling.original_context_length"] / (2 * math.pi * turns))
                / (2 * math.log(base)))

    low = max(math.floor(pair_of(of["scaling.yarn_beta_fast"])), 0)
    high = min(math.ceil(pair_of(of["scaling.yarn_beta_slow"])), 2 * n - 1)
    for i in range(n):
        ramp = min(max((i - low) / (high - low), 0), 1)
        plain = base ** (-i / n)
        yield plain * (1 - ramp) + plain / factor * ramp


class Dump(ProgramTest):
    def dump(self, lines, *more, name="dump", manifest=None):
        self.expect(0, "dump", manifest or self.manifest(), "-i", self.batch(lines), "-o",
                    self.path(name), *more)
        return json.loads((self.folder / name / "dump.json").read_text())

    def tensors(self, about, i=0, name="dump"):
        return Tensors(self.folder / name / about["documents"][i]["file"])

    def test_the_logits_of_a_dump_select_what_the_engine_selected(self):
        prompt = [(j * 37) % 500 + 1 for j in range(300)]
        manifest = self.manifest("swap.toml", more=SWAP)
        self.expect(0, "run", manifest, "-i", self.batch([
            {"id": "a", "tokens": prompt, "max_tokens": 9, "ignore_eos": True}]),
            "-o", self.path("r.jsonl"), "--trace", self.path("run.trace"))
        self.expect(0, "replay", self.path("run.trace"), "--no-bound", "--oracle-general",
                    self.path("selected"))
        selected = {}
        for step, place, _, _ in struct.iter_unpack(
                "<IQIq", (self.folder / "selected").read_bytes()):
            selected.setdefault((step, place >> 32 & 0xffff), set()).add(place & 0xffffffff)
        tokens = prompt + self.results()[0]["tokens"][:-1]
        about = self.dump([{"id": "a", "tokens": tokens}], "--last", "16", "--every", "100")
        tensors = self.tensors(about)
        n_prefill = -(-len(prompt) // 64)
        n_compared = 0
        for row, position in enumerate(tensors.values["positions"]):
            if position < len(prompt):
                continue
            for entry in about["layers"]:
                own = logits(tensors, about, entry["layer"], row)
                best = sorted(range(len(own)), key=lambda c: (-own[c], c))[:about["top_k"]]
                engine = selected[n_prefill + 1 + position - len(prompt), entry["ordinal"]]
                # Sums in another order may swap neighbours at the cut, and nothing else.
                cut = own[best[-1]]
                for chunk in engine ^ set(best):
                    self.assertAlmostEqual(own[chunk], cut, delta=1e-5 * max(1, abs(cut)))
                self.assertEqual(len(engine), about["top_k"])
                n_compared += 1
        self.assertEqual(n_compared, 8 * 4)

    def test_a_description_says_what_the_files_hold(self):
        lines = [{"id": "a", "tokens": list(range(1, 71))}, {"id": "b", "prompt": "It was a dark"}]
        about = self.dump(lines, "--every", "16", "--last", "3")
        self.assertTrue(about["complete"])
        self.assertEqual([(e["layer"], e["ordinal"]) for e in about["layers"]],
                         [(2, 0), (4, 1), (6, 2), (8, 3)])
        self.assertEqual((about["d_model"], about["d"], about["n_heads"], about["ratio"],
                          about["top_k"], about["transformed"]), (256, 64, 32, 4, 64, False))
        self.assertAlmostEqual(about["weight_scale"], (64 * 32) ** -0.5, places=9)
        for frequency, expected in zip(about["rope"]["frequency"], yarn(about["rope"]), strict=True):
            self.assertAlmostEqual(frequency / expected, 1, delta=1e-12)
        first, second = about["documents"]
        self.assertEqual((first["id"], first["n_tokens"], first["n_rows"], first["n_chunks"]),
                         ("a", 70, 8, 17))
        self.assertEqual((second["id"], second["n_chunks"]), ("b", second["n_tokens"] // 4))
        tensors = self.tensors(about)
        self.assertEqual(tensors.about, {"id": "a"})
        self.assertEqual(tensors.values["positions"], (0, 16, 32, 48, 64, 67, 68, 69))
        self.assertEqual(tensors.values["tokens"], tuple(range(1, 71)))
        for layer in (2, 4, 6, 8):
            for name, shape in (("hidden", [8, 256]), ("index_q", [8, 32, 64]),
                                ("index_weight", [8, 32]), ("keys", [17, 64])):
                self.assertEqual(tensors.shape[f"{name}_layer_{layer}"], shape)
                self.assertTrue(any(tensors.row(f"{name}_layer_{layer}", shape[0] - 1)))

    def test_values_do_not_depend_on_steps_nor_on_what_else_is_dumped(self):
        lines = [{"id": "a", "tokens": [(j * 11) % 300 for j in range(200)]}]
        whole = self.tensors(self.dump(lines, name="whole"), name="whole")
        part = self.tensors(self.dump(lines, "--layers", "8,4", "--every", "7", "--last", "0",
                                      "--set", "engine.prefill_chunk=13", name="part"), name="part")
        self.assertEqual(sorted({name.split("_layer_")[1] for name in part.shape if "_" in name}),
                         ["4", "8"])
        for layer in (4, 8):
            self.assertEqual(part.values[f"keys_layer_{layer}"], whole.values[f"keys_layer_{layer}"])
            for i, position in enumerate(part.values["positions"]):
                self.assertEqual(position, 7 * i)
                for name in ("hidden", "index_q", "index_weight"):
                    self.assertEqual(part.row(f"{name}_layer_{layer}", i),
                                     whole.row(f"{name}_layer_{layer}", position))

    def test_bf16_is_the_nearest_and_stored_keys_are_decoded(self):
        lines = [{"id": "a", "tokens": [(j * 11) % 300 for j in range(80)]}]
        exact = self.tensors(self.dump(lines, name="exact"), name="exact")
        about = self.dump(lines, "--bf16", "--set", "attention.index_format=fp8", name="half")
        half = self.tensors(about, name="half")
        self.assertEqual((about["vector_type"], about["index_format"], about["transformed"]),
                         ("bf16", "fp8", True))
        self.assertEqual(half.type["hidden_layer_2"], "BF16")
        for one, other in zip(exact.values["hidden_layer_2"], half.values["hidden_layer_2"],
                              strict=True):
            bits, = struct.unpack("<I", struct.pack("<f", one))
            self.assertLessEqual(abs(bits - (other << 16)), 0x8000)
        # The transform of fp8 keys keeps their length.
        for chunk in range(20):
            own, other = (dot(row, row) for row in (exact.row("keys_layer_2", chunk),
                                                    half.row("keys_layer_2", chunk)))
            self.assertAlmostEqual(other / own, 1, delta=0.05)

    def test_a_model_without_a_tokenizer_takes_token_ids_from_stdin(self):
        manifest = self.manifest(model=DATA / "models" / "tiny_kmix.gguf", tokenizer=False)
        done = subprocess.run([EBB, "dump", manifest, "-i", "-", "-o", self.path("dump")],
                              input=b'{"id": "a", "tokens": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n',
                              capture_output=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        about = json.loads((self.folder / "dump" / "dump.json").read_text())
        self.assertEqual(about["documents"][0]["n_chunks"], 2)

    def test_what_cannot_be_dumped_is_refused_and_leaves_no_folder(self):
        manifest = self.manifest()
        good = self.batch([{"id": "a", "tokens": [1, 2, 3]}])
        out = self.path("dump")

        def refused(says, *arguments, input_file=good):
            self.expect_refused(says, "dump", manifest, "-i", input_file, "-o", out, *arguments)
            self.assertFalse(os.path.exists(out))

        refused("layer 3 has no index keys: want one of 2, 4, 6, 8", "--layers", "2,3")
        refused("layer 99", "--layers", "99")
        refused("no such file", input_file=self.path("none.jsonl"))
        refused("long.jsonl:2: the prompt has 600 tokens", input_file=self.batch(
            [{"id": "a", "tokens": [1]}, {"id": "b", "tokens": [1] * 600}], "long.jsonl"))
        refused("bad.jsonl:1: ", input_file=self.batch([{"id": "a"}], "bad.jsonl"))
        refused("engine.max_context", "--set", "engine.max_context=x")
        for arguments in (("--every", "0"), ("--last", "-1"), ("--layers", "two")):
            self.assertEqual(self.ebb("dump", manifest, "-i", good, "-o", out, *arguments).status, 2)
        pathlib.Path(out).mkdir()
        (pathlib.Path(out) / "mine").write_text("mine")
        self.expect_refused("not empty", "dump", manifest, "-i", good, "-o", out)
        self.assertEqual(os.listdir(out), ["mine"])
        self.expect_refused("exists", "dump", manifest, "-i", good, "-o", self.write("file", ""))
        self.expect_refused("no/folder", "dump", manifest, "-i", good, "-o",
                            self.path("no/folder"))
        self.expect_refused("cannot make the folder: File name too long", "dump", manifest, "-i",
                            good, "-o", self.path("x" * 300))

    def dump_until_a_document_is_done(self, out):
        lines = [{"id": f"d{i}", "tokens": [(j * 7) % 300 for j in range(500)]} for i in range(200)]
        process = subprocess.Popen([EBB, "dump", self.manifest(), "-i", self.batch(lines), "-o",
                                    str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        made = out.with_name(f"{out.name}.{process.pid}.tmp")
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline and not (made / "000000.safetensors").exists():
            self.assertIsNone(process.poll(), "it ended before it could be stopped")
            time.sleep(0.005)
        return process, made

    def test_an_interrupted_dump_keeps_whole_documents_and_says_so(self):
        out = self.folder / "dump"
        process, made = self.dump_until_a_document_is_done(out)
        self.assertFalse(out.exists())
        process.send_signal(signal.SIGINT)
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertFalse(made.exists())
        about = json.loads((out / "dump.json").read_text())
        self.assertFalse(about["complete"])
        files = [entry["file"] for entry in about["documents"]]
        self.assertEqual(sorted(os.listdir(out)), sorted([*files, "dump.json"]))
        self.assertLess(len(files), 200)
        Tensors(out / files[-1])

    def test_a_killed_dump_is_none_and_the_next_one_clears_it_away(self):
        out = self.folder / "dump"
        process, made = self.dump_until_a_document_is_done(out)
        self.expect_refused("dump: another process is writing it", "dump", self.path("m.toml"), "-i",
                            self.path("p.jsonl"), "-o", out)
        process.kill()
        process.wait()
        self.assertFalse(out.exists())
        self.assertFalse((made / "dump.json").exists())
        self.dump([{"id": "a", "tokens": [1, 2, 3, 4]}])
        self.assertFalse(made.exists())


class BundledScorers(ProgramTest):
    def right(self, name, *more):
        needles = DATA.joinpath("needles.jsonl").read_text("utf-8").splitlines()
        chosen = [line for line in needles if '"id": "n2k-' in line][:3]
        self.assertEqual(len(chosen), 3)
        self.expect(0, "eval", "needles", name, "-i",
                    self.write("needles.jsonl", "\n".join(chosen)), "-o", self.path("out.jsonl"),
                    "--set", "compute.threads=1", "--set", "engine.prefill_chunk=256", *more)
        return sum(line["right"] for line in self.results("out.jsonl"))

    def test_a_tenth_of_the_chunks_is_enough_if_the_scorers_choose_it(self):
        self.assertEqual(self.right(DEMO / "bounded.toml", "--set", "memory.budget=0.1"), 3)

    def test_and_is_not_if_they_are_the_last_ones(self):
        text = DEMO.joinpath("bounded.toml").read_text().split("[[memory.scorer]]")[0]
        recent = self.write("recent.toml", text.replace('"demo.toml"', f'"{DEMO}/demo.toml"')
                            + '[[memory.scorer]]\nmodule = "scorer_recent"\n')
        self.assertLess(self.right(recent, "--set", "memory.budget=0.1"), 3)


if __name__ == "__main__":
    unittest.main()
