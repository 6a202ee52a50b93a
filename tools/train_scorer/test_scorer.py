#!/usr/bin/env python3
"""The trainer's arithmetic against reference.py, and a training run on a planted pattern.

Exit status 77, "skipped", where PyTorch or NumPy is missing: what was not tested is said.
"""

import contextlib
import importlib.util
import io
import json
import pathlib
import struct
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SCORERS = HERE.parents[1] / "config" / "demo" / "scorers.safetensors"


def has(module):
    return importlib.util.find_spec(module) is not None


if not has("numpy"):
    print("SKIPPED: no NumPy: nothing of the trainer was tested")
    sys.exit(77)

import numpy as np  # noqa: E402

import reference  # noqa: E402

HAS_TORCH = has("torch")
HAS_FILES = HAS_TORCH and has("safetensors")
if HAS_TORCH:
    import torch

    import scorer as scorer_module
    from labels import Labels, Settings, sample
    from metrics import Tally, judge
    from scorer import Scorer, hadamard, score


def about_of(d_model, d, n_pairs, transformed=False, n_heads=4, top_k=5, layers=(2, 4, 6)):
    frequency = reference.yarn_frequencies(160000, n_pairs, 16, 65536, 32, 1)
    return {"d_model": d_model, "d": d, "transformed": transformed, "ratio": 4, "top_k": top_k,
            "n_heads": n_heads, "weight_scale": (d * n_heads) ** -0.5, "model": "none",
            "ebb_dump": 1, "layers": [{"layer": layer, "ordinal": i}
                                      for i, layer in enumerate(layers)],
            "rope": {"n_pairs": n_pairs, "frequency": list(frequency)}}


class Failures(unittest.TestCase):
    """What cannot be done ends with status 2 and one line, never with a traceback."""

    def ends(self, *command):
        done = subprocess.run([sys.executable, "-B", *map(str, command)], capture_output=True,
                              text=True, cwd=HERE)
        self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
        self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
        return done.stderr

    def test_what_stops_a_script_is_one_line(self):
        for body, says in (
                ("need('json', 'no_such_package_a', 'no_such_package_b')",
                 "needs no_such_package_a, no_such_package_b for Python"),
                ("with blaming('x.json'): __import__('json').loads('{')", "x.json: Expecting"),
                ("with blaming('x.bin'): open('/nowhere/at/all')", "x.bin: No such file"),
                ("with blaming('x'): {}['wq_a.weight']", "x: no 'wq_a.weight' in it"),
                ("with blaming('x'): raise EOFError", "x: EOFError"),
                ("with blaming('a\\x1b[2J\\nb'): raise ValueError('two\\nlines')",
                 "a\\x1b[2J b: two lines"),
                ("run(lambda: sys.exit('nothing to learn'))", "nothing to learn"),
                ("run(lambda: open('/nowhere/at/all', 'w'))", "/nowhere/at/all: No such file")):
            self.assertIn(says, self.ends("-c", f"import sys\nfrom failures import *\n{body}"))
        done = subprocess.run([sys.executable, "-B", "-c",
                               "from failures import *\nrun(lambda: print('done'))"],
                              capture_output=True, text=True, cwd=HERE)
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "done\n", ""))

    def test_the_scripts_say_what_they_miss_or_cannot_read(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "dump.json").write_text("{")
            (folder / "none").mkdir()
            (folder / "x.gguf").write_bytes(b"GGUF")
            for dump, says in ((folder / "none", "no dump.json"), (folder, "dump.json: Expecting")):
                for script, option in (("train.py", "-o"), ("evaluate.py", "--scorers")):
                    line = self.ends(script, dump, option, folder / "out")
                    self.assertIn(says if HAS_FILES else "for Python: pip install", line)
            line = self.ends("init_from_gguf.py", folder / "x.gguf", "-o", folder / "out")
            self.assertIn("x.gguf: " if HAS_FILES and has("gguf") else "for Python: pip", line)


    def test_numbers_out_of_range_are_told_in_a_line(self):
        def refused(says, *command):
            line = self.ends(*command)
            self.assertIn(says if HAS_FILES else "for Python: pip install", line)

        small = {"--rank": "0", "--heads": "0", "--layers": "-1", "--seed": "-1", "--top-p": "0",
                 "--min-layers": "0", "--interval": "0", "--max-pos": "0", "--neg-ratio": "-1",
                 "--hard": "-1", "--end-token": "-2", "--steps": "0", "--minutes": "-1", "--rows": "0",
                 "--documents": "0", "--lr": "0", "--weight-decay": "-1", "--warmup": "0",
                 "--clip": "0", "--joint": "-1", "--focus-token": "-1", "--focus-share": "-0.1",
                 "--validation": "-0.1", "--evaluate-every": "-1", "--recent": "-1", "--sink": "-1",
                 "--body-rows": "-1"}
        if HAS_FILES:  # none is left out
            import train
            taken = train.parse_arguments(["x", "-o", "y"])
            for option in vars(taken):
                if option not in ("dumps", "output", "note", "init", "dtype", "device", "weigh"):
                    self.assertIn("--" + option.replace("_", "-"), small)
            self.assertEqual((taken.top_p, taken.end_token, taken.steps), (0.6, -1, 2000))
            for option, text in small.items():
                with self.assertRaises(SystemExit), contextlib.redirect_stderr(io.StringIO()) as told:
                    train.parse_arguments(["x", "-o", "y", f"{option}={text}"])
                self.assertRegex(told.getvalue(), rf"\A.*argument {option}: '{text}': want a .*\n\Z")
        for option, text in (("--lr", "nan"), ("--lr", "inf"), ("--rank", "1e3"), ("--rank", "9" * 30),
                             ("--rank", "1_0"), ("--interval", "65"), ("--validation", "x")):
            refused(f"argument {option}: '{text}': want a", "train.py", "x", "-o", "y", option, text)
        refused("invalid choice", "train.py", "x", "-o", "y", "--dtype", "f64")
        refused("arguments are required", "evaluate.py", "x")
        refused("argument --end-token: '-2'", "evaluate.py", "x", "--scorers", "y", "--end-token", "-2")
        refused("argument --recent: 'x'", "evaluate.py", "x", "--scorers", "y", "--recent", "x")


class Reference(unittest.TestCase):
    """The reference itself, in cases that can be told by hand."""

    def test_hadamard_is_orthonormal_and_symmetric(self):
        h = reference.hadamard_matrix(64)
        self.assertTrue(np.allclose(h @ h, np.eye(64)))

    def test_yarn_keeps_the_fast_pairs_and_divides_the_slow_ones(self):
        plain = reference.yarn_frequencies(160000, 32, 1, 65536, 32, 1)
        yarn = reference.yarn_frequencies(160000, 32, 16, 65536, 32, 1)
        self.assertTrue(np.array_equal(yarn[:16], plain[:16]))  # 15 is the ramp's foot
        self.assertTrue(np.allclose(yarn[25:], plain[25:] / 16, rtol=1e-12))
        self.assertTrue(np.allclose(yarn[20], plain[20] * (0.5 + 0.5 / 16)))

    def test_one_head_is_a_clipped_product(self):
        keys = np.array([[1.0, 0, 0, 0], [-1, 0, 0, 0], [0, 2, 0, 0]])
        weights = {"wq_a.weight": [[1, 0], [0, 1]], "q_norm_weight": [1, 1],
                   "wq_b.weight": [[1, 0], [0, 1], [0, 0], [0, 0]], "weights_proj.weight": [[4, 0]]}
        # The latent [3, 4] has the root mean square sqrt(12.5); weight 4 * 3 / sqrt(4 * 1) = 6.
        got = reference.scorer_logits(weights, np.array([3.0, 4.0]), 7, keys, [1.0], False)
        self.assertTrue(np.allclose(got, np.array([6 * 3, 0, 6 * 8]) / np.sqrt(12.5)))

    def test_a_prefix_is_the_shortest_that_holds_the_mass(self):
        logits = np.log([0.1, 0.4, 0.3, 0.2])
        self.assertEqual(reference.golden_prefix(logits, 4, 0.6), [1, 2])
        self.assertEqual(reference.golden_prefix(logits, 4, 0.4 - 1e-9), [1])
        self.assertEqual(reference.golden_prefix(logits, 2, 0.6), [1, 2])
        self.assertEqual(reference.golden_prefix(logits[:1], 4, 0.6), [0])


@unittest.skipUnless(SCORERS.is_file(), "no scorers of the demo model here")
class BundledScorers(unittest.TestCase):
    def test_names_and_shapes(self):
        data = SCORERS.read_bytes()
        size, = struct.unpack_from("<Q", data)
        header = json.loads(data[8:8 + size])
        header.pop("__metadata__", None)
        names = {name.rsplit(".l", 1)[0] for name in header}
        self.assertEqual(names, {"retrievers"})
        for prefix in {name.split(".")[1] for name in header}:
            part = {name.split(".", 2)[2]: entry["shape"] for name, entry in header.items()
                    if name.split(".")[1] == prefix}
            rank, d_model = part["wq_a.weight"]
            n_heads = part["weights_proj.weight"][0]
            self.assertEqual(d_model, 256)
            self.assertEqual(part, {"wq_a.weight": [rank, 256], "wq_b.weight": [64 * n_heads, rank],
                                    "q_norm_weight": [rank], "weights_proj.weight": [n_heads, 256]})


@unittest.skipUnless(HAS_TORCH, "no PyTorch")
class Forward(unittest.TestCase):
    def test_hadamard_is_that_of_the_definition(self):
        x = np.random.default_rng(1).normal(size=(3, 5, 128))
        got = hadamard(torch.tensor(x)).numpy()
        self.assertTrue(np.allclose(got, x @ reference.hadamard_matrix(128), atol=1e-12))

    def test_logits_are_those_of_the_reference(self):
        rng = np.random.default_rng(2)
        for d_model, d, n_pairs, rank, n_heads, transformed in (
                (256, 64, 16, 48, 6, False), (96, 128, 32, 32, 3, True), (64, 64, 32, 16, 1, False)):
            about = about_of(d_model, d, n_pairs, transformed)
            torch.manual_seed(d)
            scorer = Scorer(about, rank, n_heads)
            with torch.no_grad():
                scorer.q_norm_weight.copy_(torch.rand(rank) + 0.5)
            weights = {name: value.numpy() for name, value in scorer.state_dict().items()}
            self.assertEqual(set(weights), set(scorer_module.PARTS))
            position = np.array([0, 1, 4095, 65536, 262143])
            hidden = rng.normal(size=(len(position), d_model)).astype(np.float32)
            keys = rng.normal(size=(40, d)).astype(np.float32)
            with torch.no_grad():
                q, weight = scorer.queries(torch.tensor(hidden), torch.tensor(position))
                got = score(q, weight, torch.tensor(keys)).numpy()
                own = score(q, weight, torch.tensor(keys).expand(len(position), -1, -1)).numpy()
            self.assertTrue(np.allclose(got, own, atol=1e-6))
            for row, pos in enumerate(position):
                expected = reference.scorer_logits(weights, hidden[row].astype(np.float64), int(pos),
                                                   keys.astype(np.float64), about["rope"]["frequency"],
                                                   transformed)
                self.assertTrue(np.all(np.abs(got[row] - expected) < 1e-4 * (1 + np.abs(expected))))


class Fake:
    """A document as dumps.Document is, with random vectors."""

    def __init__(self, about, position, n_chunks, seed, tokens=None):
        rng = np.random.default_rng(seed)
        self.about, self.id = about, f"fake {seed}"
        self.layers = [layer["layer"] for layer in about["layers"]]
        self.position = torch.tensor(position)
        self.row_token = torch.tensor(tokens if tokens is not None else [9] * len(position))
        n, heads, d = len(position), about["n_heads"], about["d"]
        self.data = {layer: [torch.tensor(rng.normal(size=shape, scale=2), dtype=torch.float32)
                             for shape in ((n, about["d_model"]), (n_chunks, d), (n, heads, d),
                                           (n, heads))] for layer in self.layers}

    def hidden(self, layer, rows):
        return self.data[layer][0][rows]

    def keys(self, layer):
        return self.data[layer][1]

    def index(self, layer, rows):
        return self.data[layer][2][rows], self.data[layer][3][rows] * self.about["weight_scale"]

    def visible(self, rows):
        return (self.position[rows] + 1) // self.about["ratio"]

    n_rows = property(lambda self: len(self.position))
    n_chunks = property(lambda self: len(self.data[self.layers[0]][1]))


@unittest.skipUnless(HAS_TORCH, "no PyTorch")
class LabelsByDefinition(unittest.TestCase):
    END = 1

    def setUp(self):
        position = list(range(0, 60, 3)) + list(range(60, 120))  # thin, then every token
        tokens = [9] * len(position)
        tokens[40] = self.END
        self.about = about_of(16, 8, 2)
        self.fake = Fake(self.about, position, 30, 3, tokens)
        self.settings = Settings(min_layers=2, interval=16, end_token=self.END, max_pos=6, hard=3)
        self.rows = [0, 5, 10, 19, 25, 39, 40, 41, 70, 79]

    def brute(self, row):
        """{layer: prefix} of a row."""
        visible = int(self.fake.visible(torch.tensor([row])))
        out = {}
        for layer in self.fake.layers:
            q, weight = self.fake.index(layer, torch.tensor([row]))
            logits = reference.native_logits(q[0].double().numpy(), weight[0].double().numpy(), 1.0,
                                             self.fake.keys(layer)[:visible].double().numpy())
            out[layer] = (reference.golden_prefix(logits, 5, 0.6) if visible else [], logits)
        return out

    def interval(self, row):
        tokens, position = self.fake.row_token.tolist(), self.fake.position.tolist()
        for other in range(row, len(position)):
            if position[other] >= position[row] + 16:
                break
            yield other
            if tokens[other] == self.END:
                break

    def test_unions_votes_and_masses(self):
        made = Labels(self.fake, self.settings)
        votes, mass = made.union(torch.tensor(self.rows))
        for i, row in enumerate(self.rows):
            expected, weighed = {}, {}
            visible = int(self.fake.visible(torch.tensor([row])))
            interval = list(self.interval(row))
            for other in interval:
                brute = self.brute(other)
                count = {}
                for prefix, _ in brute.values():
                    for chunk in prefix:
                        count[chunk] = count.get(chunk, 0) + 1
                for chunk, vote in count.items():
                    if vote < 2 or chunk >= visible:
                        continue
                    expected[chunk] = max(expected.get(chunk, 0), vote)
                    for _, logits in brute.values():
                        best = np.sort(logits)[::-1][:5]
                        if logits[chunk] >= best[-1]:
                            share = np.exp(logits[chunk]) / np.exp(best).sum()
                            weighed[chunk] = weighed.get(chunk, 0) + share / len(interval)
            got = {c: int(v) for c, v in enumerate(votes[i]) if v > 0}
            self.assertEqual(got, expected, f"row {row}")
            for chunk, value in weighed.items():
                self.assertAlmostEqual(float(mass[i, chunk]), value, places=4)

    def test_samples_are_labelled_right_and_exist(self):
        made = Labels(self.fake, self.settings)
        rows = torch.tensor(self.rows)
        wrong = torch.rand(len(rows), 30)
        ids, target, weight = sample(made, rows, torch.Generator().manual_seed(1), wrong)
        votes, _ = made.union(rows)
        for i in range(len(rows)):
            real = weight[i] > 0
            positive = ids[i][real & (target[i] == 1)].tolist()
            negative = ids[i][real & (target[i] == 0)].tolist()
            golden = {c for c, v in enumerate(votes[i]) if v > 0}
            visible = int(self.fake.visible(rows[i:i + 1]))
            self.assertEqual(len(positive), min(len(golden), 6))
            self.assertEqual(len(set(positive)), len(positive))
            self.assertLessEqual(set(positive), golden)
            self.assertLessEqual(set(negative), set(range(visible)) - golden)
            hardest = sorted(set(range(visible)) - golden, key=lambda c: -wrong[i, c])[:3]
            self.assertLessEqual(set(hardest), set(negative))

    def test_the_oracle_beats_all_and_everything_is_kept_at_a_full_budget(self):
        made = Labels(self.fake, self.settings)
        tally = Tally(self.fake.layers)
        scorers = {layer: Scorer(self.about, 8, 2) for layer in self.fake.layers}
        with torch.no_grad():
            judge(self.fake, made, scorers, torch.tensor([30, 45, 60]), tally,
                  torch.Generator().manual_seed(1), recent=4, sink=4)
        report = tally.report()
        self.assertEqual(report["forecasts"], 3)
        for layer in map(str, self.fake.layers):
            for budget in ("0.25", "0.50"):
                for what in ("recall", "mass"):
                    values = {method: report["methods"][method][budget][layer][what]
                              for method in report["methods"]}
                    self.assertEqual(set(values), {"oracle", "scorer", "reuse", "recency", "random"})
                    self.assertTrue(all(0 <= value <= 1 for value in values.values()))
            total = sum(report["methods"]["oracle"][f"{b:.2f}"][layer]["mass"] for b in (0.25, 0.5))
            for method in ("scorer", "reuse", "recency", "random"):
                other = sum(report["methods"][method][f"{b:.2f}"][layer]["mass"] for b in (0.25, 0.5))
                self.assertGreater(total, other - 0.1, method)


@unittest.skipUnless(HAS_TORCH, "no PyTorch")
class RowsDrawn(unittest.TestCase):
    def test_there_are_as_many_as_asked_for_whatever_the_share(self):
        from items import Rows
        about = about_of(16, 8, 2)
        for tokens, focus, body in (([9] * 40, 0, 17), ([1] * 40, 17, 0), ([1, 9] * 20, 8, 9)):
            rows = Rows(Fake(about, list(range(40)), 10, 1, tokens), 1)
            self.assertEqual((len(rows.focus), len(rows.body)), (focus, body))
            for n in (1, 7):
                for share in (0, 0.4, 1):
                    drawn = rows.draw(n, share, torch.Generator().manual_seed(1))
                    self.assertEqual(len(drawn), n)
                    if focus and body:
                        is_focus = torch.isin(drawn, rows.focus)
                        self.assertEqual(int(is_focus.sum()), int(n * share))


@unittest.skipUnless(HAS_FILES, "no PyTorch or no safetensors package")
class Training(unittest.TestCase):
    """Chunks whose key points where the hidden vector does are what the model selects."""

    def plant(self, folder):
        from safetensors.torch import save_file
        about = about_of(16, 8, 1, n_heads=2, top_k=4, layers=(2, 4))
        # Still dims alone, so that the rope has nothing to hide.
        about |= {"weight_scale": 1.0, "documents": []}
        generator = torch.Generator().manual_seed(5)
        mixing = torch.randn(8, 16, generator=generator) / 2
        mixing[3:] = 0
        mixing[:, 0] = 0
        for number in range(8):
            n = 320
            hidden = torch.randn(n // 2, 16, generator=generator).repeat_interleave(2, 0)
            hidden[:, 0] = 3  # real ones have a mean too: head weights have no other constant
            keys = torch.randn(n // 4, 8, generator=generator)
            keys[:, 3:] = 0
            tensors = {"positions": torch.arange(n), "tokens": torch.full((n,), 9).int()}
            for layer in (2, 4):
                tensors |= {f"hidden_layer_{layer}": hidden.clone(),
                            f"keys_layer_{layer}": keys.clone(),
                            f"index_q_layer_{layer}":
                                (hidden @ mixing.T)[:, None].repeat(1, 2, 1).contiguous(),
                            f"index_weight_layer_{layer}": torch.ones(n, 2)}
            name = f"{number:06}.safetensors"
            save_file(tensors, str(folder / name))
            about["documents"].append({"id": f"d{number}", "file": name})
        (folder / "dump.json").write_text(json.dumps(about))

    def test_a_dump_that_was_ended_early_is_taken_and_said_to_be(self):
        from dumps import read_dumps
        with tempfile.TemporaryDirectory() as name:
            self.plant(pathlib.Path(name))
            path = pathlib.Path(name, "dump.json")
            about = json.loads(path.read_text())
            for complete, says in ((True, ""), (False, f"{name}: the dump was ended early: it has 8 documents\n")):
                path.write_text(json.dumps(about | {"complete": complete}))
                with contextlib.redirect_stderr(io.StringIO()) as told:
                    _, documents = read_dumps([name])
                self.assertEqual((told.getvalue(), len(list(documents))), (says, 8))

    def test_what_leaves_nothing_to_do_is_told_in_a_line(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.plant(folder)
            whole = json.loads((folder / "dump.json").read_text())
            for more, about, says in (
                    (("--min-layers", "3"), whole, "--min-layers 3: the dump has 2 layers"),
                    (("--min-layers", "1", "--validation", "1"), whole, "takes all 8 documents"),
                    (("--min-layers", "1"), whole | {"top_k": 80}, "nothing to learn")):
                (folder / "dump.json").write_text(json.dumps(about))
                line = Failures.ends(self, "train.py", name, "-o", folder / "out", "--device", "cpu",
                                     *more)
                self.assertIn(says, line)
            line = Failures.ends(self, "evaluate.py", name, "--scorers", "none", "--device", "cpu")
            self.assertIn("nothing to judge", line)

    def test_a_planted_pattern_is_learned_and_written(self):
        import train
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            self.plant(folder)
            argv = sys.argv
            sys.argv = ["train.py", name, "-o", str(folder / "out"), "--rank", "16", "--heads", "8",
                        "--min-layers", "1", "--interval", "2", "--steps", "150", "--rows", "32",
                        "--documents", "2", "--lr", "3e-2", "--hard", "2", "--device", "cpu", "--recent", "4",
                        "--sink", "4", "--validation", "0.25", "--dtype", "bf16", "--warmup", "5"]
            try:
                train.main()
            finally:
                sys.argv = argv
            record = json.loads((folder / "out" / "training.json").read_text())
            losses = [entry["loss"] for entry in record["curve"]]
            self.assertLess(losses[-1], losses[0])
            recall = {method: train.mean_of(record["metrics"]["body"], method, 0.25, "recall")
                      for method in ("scorer", "random", "recency")}
            self.assertGreater(recall["scorer"], recall["random"] + 0.2, recall)
            self.assertGreater(recall["scorer"], recall["recency"] + 0.2, recall)
            from safetensors.torch import load_file
            written = load_file(str(folder / "out" / "scorer.safetensors"))
            self.assertEqual({key: tuple(value.shape) for key, value in written.items()}, {
                f"retrievers.l{j}.{part}": shape for j in (0, 1) for part, shape in (
                    ("wq_a.weight", (16, 16)), ("wq_b.weight", (64, 16)), ("q_norm_weight", (16,)),
                    ("weights_proj.weight", (8, 16)))})
            self.assertTrue(all(value.dtype == torch.bfloat16 for value in written.values()))
            self.assertIn("| scorer |", (folder / "out" / "training.md").read_text())


if __name__ == "__main__":
    result = unittest.main(exit=False).result
    if not result.wasSuccessful():
        sys.exit(1)
    for test, why in result.skipped:
        print(f"SKIPPED: {test}: {why}")
    sys.exit(77 if result.skipped else 0)
