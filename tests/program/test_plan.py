"""ebb plan: what a manifest takes, whether it fits, and what would."""

import json
import re
import resource
import unittest

from support import DATA, ROOT, ProgramTest

FLASH = [ROOT / "config" / "synthetic_v4_flash_cuda.toml", "--set", "compute.module=compute_cpu"]
MIB = 1 << 20


class Plan(ProgramTest):
    def plan(self, *arguments, status=0):
        return json.loads(self.expect(status, "plan", "--json", *arguments).out)

    def set(self, *settings):
        return [word for setting in settings for word in ("--set", setting)]

    def test_the_figures_are_those_that_check_reports(self):
        swap = '[swap]\nmodule = "swap_lru"\nslots = 64\n'
        manifest = self.manifest(max_context=2048, max_sequences=3, more=swap)
        check = self.expect(0, "check", manifest).out
        plan = self.expect(0, "plan", manifest).out
        shown = re.findall(r"(?m)^  ([a-z ]+?) {2,}(\d[\d.]* \w+)$",
                           check.split("memory by part")[1])
        self.assertGreater(len(shown), 12)
        for name, size in shown:
            name = "in all" if name == "the device in all" else name
            self.assertRegex(plan, rf"(?m)^  {name} .* {re.escape(size)}$")
        self.assertRegex(plan, r"(?m)^  chunk pool .* 2\.25 MiB$")  # 3 x 4 x 512 rows of 384 bytes
        self.assertIn("\nfits\n", plan)
        report = self.plan(manifest)
        self.assertEqual(sum(part["bytes"] for part in report["device"]["parts"]),
                         report["device"]["bytes"])
        self.assertTrue(report["fits"])
        self.assertEqual(report["longest_context"], 65536)

    def test_bytes_of_a_sequence_are_what_one_more_adds(self):
        manifest = self.manifest(max_context=2048, max_sequences=4)
        parts = {part["part"]: part for part in self.plan(manifest)["device"]["parts"]}
        five = {part["part"]: part["bytes"] for part in
                self.plan(manifest, *self.set("engine.max_sequences=5"))["device"]["parts"]}
        for name, part in parts.items():
            self.assertEqual(part["bytes"] + part["bytes_per_sequence"], five[name], name)
        self.assertEqual(parts["csa rows"]["bytes_per_sequence"], 4 * 512 * 384)
        self.assertEqual(parts["streams"]["bytes_per_sequence"], 0)

    def test_savings_of_swapping_at_the_full_shape(self):
        # 21 layers x (tokens / 4 - slots) x bytes of a row (docs/first-system.md).
        for kv, row in (("f32", 2048), ("fp8", 584)):
            report = self.plan(*FLASH, "--device-memory", "1000GiB", "--contexts",
                               "8K,64K,256K,1M", *self.set("swap.module=swap_lru",
                                                           "swap.slots=512", f"attention.kv_format={kv}"))
            for context in report["contexts"]:
                tokens, swapped = context["tokens"], context["swapped"]
                want = 21 * (tokens // 4 - 512) * row
                self.assertEqual(swapped["swap"]["row_bytes_kept_out_per_sequence"], want)
                resident = context["resident"]["device_bytes_per_sequence"]
                device = swapped["device_bytes_per_sequence"]
                self.assertEqual(resident["csa rows"], 21 * tokens // 4 * row)
                self.assertEqual(resident["csa rows"] - device["chunk slots"], want)
                self.assertEqual(device["slot tables"], 21 * tokens // 4 * 4)
                self.assertEqual(swapped["host_bytes_per_sequence"]["chunk pool"],
                                 21 * tokens // 4 * row)
                self.assertEqual(resident["index keys"], 21 * tokens // 4 * 512)
            if kv == "f32":
                kept = [c["swapped"]["swap"]["row_bytes_kept_out_per_sequence"] / MIB
                        for c in report["contexts"]]
                self.assertEqual(kept, [63, 651, 2667, 10731])
        text = self.expect(0, "plan", *FLASH, "--device-memory", "1000GiB", "--contexts", "8K,256K",
                           *self.set("swap.module=swap_lru", "swap.slots=512")).out
        self.assertRegex(text, r"(?m)^  rows kept out of the device +63\.00 +2667\.00$")

    def test_the_longest_context_is_told_to_the_token_below_a_unit_of_128(self):
        manifest = self.manifest(max_context=8192)
        bytes_of = [sum(p["bytes"] for p in self.plan(manifest, *self.set(
            f"engine.max_context={n}"))["device"]["parts"]) for n in (9, 13)]
        self.assertLess(*bytes_of)
        taken = self.plan(manifest, *self.set("engine.max_context=12"))
        room = ["--set", f"compute.memory_limit={taken['device']['bytes']}"]
        report = self.plan(manifest, *room, status=3)
        self.assertTrue(any(s["set"] == ["engine.max_context=12"] for s in report["suggestions"]),
                        report["suggestions"])
        self.assertEqual(self.plan(manifest, *room, *self.set("engine.max_context=1"))
                         ["longest_context"], 12)

    def test_P5_memory_of_a_million_tokens_is_the_formula(self):
        # Bytes of a stored row or key as published, in MiB of 262,144 chunks in 21 layers, and of
        # 8,192 in the 20 layers of ratio 128.
        for keys, want in (("fp8", 132), ("fp4", 68)):
            settings = ["engine.max_context=1048576", "swap.module=swap_lru", "swap.slots=1024",
                        "swap.host_limit=400GiB", "attention.kv_format=fp8",
                        f"attention.index_format={keys}"]
            report = self.plan(*FLASH, "--device-memory", "1000GiB", *self.set(*settings))
            parts = {part["part"]: part["bytes"] for part in
                     report["device"]["parts"] + report["host"]["parts"]}
            for name, formula in (("chunk pool", 21 * 262144 * 584), ("index keys", 21 * 262144 * want),
                                  ("chunk slots", 21 * 1024 * 584), ("slot tables", 21 * 262144 * 4),
                                  ("hca rows", 20 * 8192 * 584)):
                self.assertAlmostEqual(parts[name] / formula, 1, delta=0.01, msg=name)

    def test_planning_the_full_shape_takes_no_memory(self):
        self.plan(*FLASH, "--device-memory", "1000GiB", *self.set("engine.max_context=1048576",
                                                                  "engine.max_sequences=16"))
        self.assertLess(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, 1 << 20)  # KiB

    def test_sequences_that_fit_are_the_last_ones_that_do(self):
        arguments = [*FLASH, "--device-memory", "100GiB"]
        report = self.plan(*arguments, "--contexts", "64K", *self.set("swap.module=swap_lru",
                                                                      "swap.host_limit=1TiB"))
        for way, settings in (("resident", ["swap.staging=resident"]), ("swapped", [])):
            n = report["contexts"][0][way]["sequences_that_fit"]
            self.assertGreater(n, 5)
            for more, status in ((0, 0), (1, 3)):
                self.plan(*arguments, *self.set("engine.max_context=65536", "swap.module=swap_lru",
                                                "swap.host_limit=1TiB",
                                                f"engine.max_sequences={n + more}", *settings),
                          status=status)
        report = self.plan(*arguments, "--contexts", "64K", *self.set("swap.module=swap_lru"))
        swapped = report["contexts"][0]["swapped"]
        self.assertTrue(swapped["limited_by_host_limit"])  # 16 GiB
        self.assertEqual(swapped["sequences_that_fit"], (16 << 30) // (21 * 16384 * 2048))

    def test_what_does_not_fit_is_refused_with_what_would(self):
        manifest = self.manifest(max_context=8192, max_sequences=3)
        limit = "compute.memory_limit=14MiB"
        result = self.expect(3, "plan", manifest, "--set", limit)
        self.assertIn("does not fit: [compute] memory_limit: ", result.err)
        self.assertNotIn("\nfits\n", result.out)
        report = self.plan(manifest, "--set", limit, status=3)
        self.assertEqual(report["complaint"].split(":")[0], "[compute] memory_limit")
        suggestions = [suggestion["set"] for suggestion in report["suggestions"]]
        self.assertGreater(len(suggestions), 3)
        seen = {}
        for settings in suggestions:
            self.assertIn(" ".join(f"--set {s}" for s in settings), result.err)
            # Later ones win, so the suggested limit does too.
            self.expect(0, "check", manifest, *self.set(limit, *settings))
            if len(settings) == 1:
                key, value = settings[0].split("=")
                seen[key] = value
        for key, step in (("engine.max_context", 128), ("engine.max_sequences", 1)):
            self.expect(3, "check", manifest, *self.set(limit, f"{key}={int(seen[key]) + step}"))
        need = int(seen["compute.memory_limit"])
        self.expect(0, "check", manifest, *self.set(f"compute.memory_limit={need}"))
        self.expect(3, "check", manifest, *self.set(f"compute.memory_limit={need - 1}"))

    def test_slots_and_pool_are_suggested_where_they_are_what_is_too_large(self):
        swap = '[swap]\nmodule = "swap_lru"\nslots = 4000\nhost_limit = "64MiB"\n'
        manifest = self.manifest(max_context=32768, more=swap)
        report = self.plan(manifest, *self.set("compute.memory_limit=16MiB"), status=3)
        slots = [s["set"][0] for s in report["suggestions"] if s["set"][0].startswith("swap.slots=")]
        self.assertEqual(len(slots), 1)
        most = int(slots[0].split("=")[1])
        self.assertGreaterEqual(most, 64)  # what one row selects
        for more, status in ((0, 0), (1, 3)):
            self.expect(status, "check", manifest, *self.set("compute.memory_limit=16MiB",
                                                             f"swap.slots={most + more}"))
        report = self.plan(manifest, *self.set("swap.host_limit=1MiB"), status=3)
        self.assertIn("host_limit = 1048576 bytes", report["complaint"])
        pool = 4 * 8192 * 384
        self.assertIn([f"swap.host_limit={pool}"], [s["set"] for s in report["suggestions"]])
        self.expect(0, "check", manifest, *self.set(f"swap.host_limit={pool}"))

    def test_all_that_makes_it_smaller_is_tried_together_at_last(self):
        arguments = [*FLASH, "--device-memory", "82GiB",
                     *self.set("engine.max_context=262144", "engine.max_sequences=16")]
        report = self.plan(*arguments, status=3)
        together = report["suggestions"][-1]["set"]
        self.assertIn("attention.kv_format=fp8", together)
        self.assertIn("engine.prefill_chunk=64", together)
        self.plan(*arguments, *self.set(*together))
        report = self.plan(*FLASH, "--device-memory", "70GiB", status=3)
        self.assertEqual(report["suggestions"], [])
        self.assertEqual(report["longest_context"], 0)

    def test_a_model_larger_than_this_machine_does_not_fit_it(self):
        result = self.expect(3, "plan", *FLASH, *self.set("loader.n_layers=1000",
                             "loader.ratios=[" + "4," * 999 + "4]"))
        self.assertIn("does not fit: this machine: ", result.err)

    def test_bad_input_is_refused(self):
        manifest = self.manifest()
        self.expect_refused("max_contxt", "plan", manifest, "--set", "engine.max_contxt=1")
        self.expect_refused("\"many\"", "plan", manifest, "--contexts", "many")
        self.expect_refused("made for at most 65536", "plan", manifest, "--contexts", "128K")
        for size in ("much", "0", "-1", "-5GiB", "18446744073709551616", "99999999999TiB", "1e9",
                     "1.5GiB"):
            result = self.expect(2, "plan", manifest, f"--device-memory={size}")
            self.assertIn("--device-memory", result.err)
            self.assertEqual(result.out, "")
        self.expect_refused("tiny.gguf", "plan", self.manifest(model="tiny.gguf"))
        self.expect(0, "plan", self.manifest(model=DATA / "models" / "tiny_kmix.gguf",
                                             tokenizer=False, max_context=64))


if __name__ == "__main__":
    unittest.main()
