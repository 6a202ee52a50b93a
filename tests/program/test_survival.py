"""A batch survives: killed at any moment or in the middle of any call that touches the disk, or out
of space, it can be resumed, and then has the results of a run that nothing happened to: each record
once, none lost, in the same order."""

import json
import os
import random
import signal
import subprocess
import time
import unittest

from support import DATA, EBB, ProgramTest

FAULTS = os.environ["EBB_FAULTS"]
N_KILLS = int(os.environ.get("EBB_KILLS", "200"))
KEPT = ("id", "text", "tokens", "finish_reason", "usage", "error")


class Survival(ProgramTest):
    def setUp(self):
        super().setUp()
        self.model = self.manifest(model=DATA / "models" / "tiny_kmix.gguf", tokenizer=False,
                                   max_context=64)

    def begin(self, n_requests, max_tokens):
        """A batch, and what a run without faults makes of it."""
        # One of them fails, so that its record is counted too.
        lines = [{"id": f"r{i}", "tokens": [1 + i, 2, 3] if i != 2 else [1] * 65,
                  "max_tokens": max_tokens, "ignore_eos": True} for i in range(n_requests)]
        self.input = self.batch(lines)
        begin = time.monotonic()
        self.expect(1, *self.command("whole.jsonl"))
        self.seconds = time.monotonic() - begin
        self.want = self.records("whole.jsonl")
        self.assertEqual([record["id"] for record in self.want], [line["id"] for line in lines])

    def command(self, output):
        return ["run", self.model, "-i", self.input, "-o", self.path(output), "--resume"]

    def records(self, name):
        return [{key: line[key] for key in KEPT} for line in self.results(name)]

    def run_with(self, fault, output, *more, log=None):
        env = {**os.environ, "LD_PRELOAD": FAULTS, "ASAN_OPTIONS": "verify_asan_link_order=0"}
        if fault:
            env["EBB_FAULT"] = fault
        if log:
            env["EBB_FAULT_LOG"] = self.path(log)
        return subprocess.run([EBB, *self.command(output), *more], env=env, capture_output=True,
                              text=True, timeout=60)

    def size(self, name):
        return os.path.getsize(self.path(name)) if os.path.exists(self.path(name)) else 0

    def check_prefix(self, name):
        """Whole records of a stopped run are the first ones of a whole run; at most one is torn."""
        path = self.folder / name
        lines = path.read_bytes().split(b"\n") if path.exists() else [b""]
        *whole, torn = lines
        got = [{key: line[key] for key in KEPT} for line in map(json.loads, whole)]
        self.assertEqual(got, self.want[:len(got)])
        return torn

    def check_end(self, name):
        self.assertEqual(self.records(name), self.want)
        self.assertTrue((self.folder / (name + ".manifest.toml")).read_text().strip())
        self.assertEqual(list(self.folder.glob(name + "*.tmp")), [])

    def calls(self):
        """How often an undisturbed run makes each call."""
        self.assertEqual(self.run_with("", "counted.jsonl", log="calls").returncode, 1)
        text = (self.folder / "calls").read_text()
        return {"write": text.count("w"), "fsync": text.count("f"), "rename": text.count("r"),
                "ftruncate": text.count("t")}

    def test_killed_at_random_moments(self):
        self.begin(60, 4)
        draw = random.Random(1)
        n_kills = n_outputs = 0
        stopped_at = set()
        whole = self.size("whole.jsonl")
        while n_kills < N_KILLS:
            output = f"k{n_outputs}.jsonl"
            n_outputs += 1
            finished = False
            while not finished:
                # Some while it starts, the others when the output has grown to some size between
                # what it is and what it will be: that hits the run however busy the machine is.
                size = self.size(output)
                starts = draw.random() < 0.2
                size_to_kill = size if starts else draw.uniform(size, whole)
                pause = draw.uniform(0, self.seconds / 5 if starts else self.seconds / 60)
                process = subprocess.Popen([EBB, *self.command(output)], stdout=subprocess.DEVNULL,
                                           stderr=subprocess.DEVNULL)
                while process.poll() is None and self.size(output) < size_to_kill:
                    time.sleep(0.0005)
                time.sleep(pause)
                process.send_signal(signal.SIGKILL)
                finished = process.wait() == 1  # it was through before
                n_kills += not finished
                self.check_prefix(output)
                if not finished and os.path.exists(self.path(output)):
                    # Whole lines: the last may be torn.
                    stopped_at.add((self.folder / output).read_bytes().count(b"\n"))
            self.check_end(output)
            for path in self.folder.glob(output + "*"):
                path.unlink()
        print(f"{n_kills} kills over {n_outputs} outputs, with {sorted(stopped_at)} records")
        self.assertGreater(len(stopped_at), min(10, N_KILLS // 10))

    def test_killed_inside_every_call(self):
        self.begin(5, 2)
        calls = self.calls()
        self.assertGreaterEqual(calls["write"], 6)  # five records and the manifest
        self.assertGreaterEqual(calls["fsync"], 6)
        self.assertGreaterEqual(calls["rename"], 1)
        n_torn = 0
        for call, hows in (("write", ("kill_before", "kill_torn", "kill_after")),
                           ("fsync", ("kill_before", "kill_after")),
                           ("rename", ("kill_before", "kill_after"))):
            for how in hows:
                for number in range(1, calls[call] + 1):
                    with self.subTest(call=call, how=how, number=number):
                        output = f"{call}-{how}-{number}.jsonl"
                        done = self.run_with(f"{call}:{number}:{how}", output)
                        self.assertEqual(done.returncode, -signal.SIGKILL)
                        n_torn += self.check_prefix(output) != b""
                        self.expect(1, *self.command(output))
                        self.check_end(output)
        self.assertEqual(n_torn, 5)  # of kill_torn, and the manifest's is not looked at

    def test_killed_inside_the_repair_of_a_torn_line(self):
        self.begin(5, 2)
        whole = (self.folder / "whole.jsonl").read_bytes()
        last = whole.rindex(b"\n", 0, -1) + 1
        for name, content in (("torn", whole[:last + 20]), ("unended", whole[:-1])):
            for fault in ("ftruncate:1:kill_before", "ftruncate:1:kill_after", "fsync:1:kill_before",
                          "fsync:1:kill_after", "write:1:kill_before", "write:1:kill_after",
                          "ftruncate:1:eio", "fsync:1:eio", "write:1:enospc"):
                with self.subTest(name=name, fault=fault):
                    self.write("r.jsonl", content)
                    done = self.run_with(fault, "r.jsonl")
                    reaches = name == "torn" or not fault.startswith("ftruncate")
                    if fault.endswith(("eio", "enospc")):
                        self.assertEqual(done.returncode, 4 if reaches else 1, done.stderr)
                    else:
                        self.assertEqual(done.returncode, -signal.SIGKILL if reaches else 1)
                    self.check_prefix("r.jsonl")
                    self.expect(1, *self.command("r.jsonl"))
                    self.check_end("r.jsonl")

    def test_writes_that_are_cut_short_are_gone_on_with(self):
        self.begin(5, 2)
        for number in range(1, self.calls()["write"] + 1):
            output = f"short-{number}.jsonl"
            self.assertEqual(self.run_with(f"write:{number}:short", output).returncode, 1)
            self.check_end(output)

    def test_a_full_or_broken_disk_is_reported_and_loses_nothing(self):
        self.begin(5, 2)
        calls = self.calls()
        reasons = {"enospc": "No space left on device", "enospc_torn": "No space left on device",
                   "eio": "Input/output error"}
        # A folder that cannot be synced is no reason to stop: the records are.
        n_stopped = 0
        for call, hows in (("write", ("enospc", "eio", "enospc_torn")), ("fsync", ("enospc", "eio")),
                           ("rename", ("enospc", "eio"))):
            for how in hows:
                for number in range(1, calls[call] + 1):
                    with self.subTest(call=call, how=how, number=number):
                        output = f"{call}-{how}-{number}.jsonl"
                        done = self.run_with(f"{call}:{number}:{how}", output)
                        if done.returncode != 1:
                            n_stopped += 1
                            self.assertEqual(done.returncode, 4, done.stderr)
                            last = done.stderr.splitlines()[-1]
                            self.assertRegex(last, rf"^ebb: .*{output}.*: cannot .*: {reasons[how]}$")
                        else:
                            self.assertIn(call, ("fsync", "write"))
                        self.check_prefix(output)
                        self.expect(1, *self.command(output))
                        self.check_end(output)
        self.assertGreater(n_stopped, 25)

    def test_a_trace_on_a_full_disk_costs_no_result(self):
        self.begin(5, 40)
        swap = ["--set", "swap.module=swap_lru", "--set", "swap.slots=12", "--trace",
                self.path("t.trace")]
        self.want = []
        self.assertEqual(self.run_with("", "traced.jsonl", *swap, log="calls").returncode, 1)
        self.want = self.records("traced.jsonl")
        n = (self.folder / "calls").read_text().count("F")
        self.assertGreater(n, 1)
        for number in range(1, n + 1):
            for how in ("enospc", "enospc_torn", "kill_torn"):
                with self.subTest(number=number, how=how):
                    output = f"t{number}-{how}.jsonl"
                    done = self.run_with(f"fwrite:{number}:{how}", output, *swap)
                    if how.startswith("kill"):
                        self.assertEqual(done.returncode, -signal.SIGKILL)
                    else:
                        self.assertEqual(done.returncode, 4, done.stderr)
                        self.assertIn("No space left on device", done.stderr)
                    self.check_prefix(output)
                    self.expect(1, *self.command(output), *swap)
                    self.check_end(output)


if __name__ == "__main__":
    unittest.main()
