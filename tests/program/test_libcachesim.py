"""Our LRU and libCacheSim's: equal misses, to the integer, where both mean the same.

swap_lru under `demand` staging is an LRU per sequence and layer, with two rules of its own. A chunk
has its slot from its completion on: exported with --births, that is a request like any other. And
the selection of a step is one set: all that is there is touched before the first victim goes, so
that no step evicts what it needs itself; libCacheSim serves one request at a time. So its cache is
given each set in two parts, first what it says it holds, then the rest, each part ascending. Which
is which is asked of libCacheSim alone.

Needs the package libcachesim; without it, all is skipped and the exit status is 77."""

import itertools
import json
import pathlib
import struct
import sys
import unittest

try:
    import libcachesim
except ImportError:
    libcachesim = None

from support import DATA, ProgramTest

TRACE = DATA / "traces" / "demo_8k.trace"
SWAP = '[swap]\nmodule = "swap_lru"\nslots = {}\nstaging = "demand"\n'


class Equality(ProgramTest):
    def export(self, trace, *more):
        """Of each sequence and layer its requests, (step, chunk), as libCacheSim reads them."""
        path = self.path("all.bin")
        self.expect(0, "replay", trace, "--oracle-general", path, "--no-bound", *more)
        reader = libcachesim.TraceReader(trace=path,
                                         trace_type=libcachesim.TraceType.ORACLE_GENERAL_TRACE)
        requests = [(r.clock_time, r.obj_id, r.obj_size, r.next_access_vtime) for r in reader]
        never = 2 ** 63 - 1  # what it makes of -1
        written = struct.iter_unpack("<IQIq", pathlib.Path(path).read_bytes())
        self.assertEqual(requests, [(time, chunk, size, following if following >= 0 else never)
                                    for time, chunk, size, following in written])
        self.row_bytes, = {size for _, _, size, _ in requests}
        caches = {}
        for time, chunk, _, _ in requests:
            caches.setdefault(chunk >> 32, []).append((time, chunk))
        return caches

    def ours(self, trace, slots):
        """Misses by layer, by number of slots."""
        self.expect(0, "replay", trace, "--policy", "swap_lru", "--staging", "demand", "--no-bound",
                    "--slots", ",".join(map(str, slots)), "--json", self.path("rows.json"))
        rows = json.loads((self.folder / "rows.json").read_text())["rows"]
        self.assertTrue(all(row["pool_reads"] == row["refused"] == 0 for row in rows))
        return {row["slots"]: [layer["misses"] for layer in row["layers"]] for row in rows}

    def misses(self, requests, slots):
        """Of selections alone: what is born is missed too, for the first time there can be."""
        cache = libcachesim.LRU(cache_size=slots * self.row_bytes)
        born, n_missed = set(), 0
        for _, group in itertools.groupby(requests, key=lambda request: request[0]):
            chosen = []
            for _, chunk in group:
                if chunk in born:
                    chosen.append(chunk)
                else:
                    born.add(chunk)
                    self.assertFalse(cache.get(self.request(chunk)))
            held = [c for c in chosen if cache.find(self.request(c), update_cache=False) is not None]
            for chunk in held:
                self.assertTrue(cache.get(self.request(chunk)))
            for chunk in sorted(set(chosen) - set(held)):
                self.assertFalse(cache.get(self.request(chunk)))
                n_missed += 1
        self.assertLessEqual(cache.get_n_obj(), slots)
        return n_missed

    def request(self, chunk):
        return libcachesim.Request(obj_id=chunk, obj_size=self.row_bytes)

    def compare(self, trace, slots, n_layers):
        caches = self.export(trace, "--births")
        ours = self.ours(trace, slots)
        for n in slots:
            theirs = [0] * n_layers
            for cache, requests in caches.items():
                theirs[cache & 0xffff] += self.misses(requests, n)
            self.assertEqual(theirs, ours[n], f"{n} slots")
            print(f"{pathlib.Path(trace).name}, {n} slots: {sum(theirs)} misses each",
                  file=sys.stderr)
        return ours

    def test_misses_of_a_recorded_run_are_equal_layer_by_layer(self):
        ours = self.compare(TRACE, [65, 107, 214, 321, 534, 1069, 2038], 4)
        self.assertEqual(sum(ours[107]), 53970)  # as policies_recorded has it

    def test_misses_of_several_sequences_that_come_and_go_are_equal(self):
        lines = [{"id": f"r{i}", "tokens": [(j * 37 + i) % 500 + 1 for j in range(400 + 60 * i)],
                  "max_tokens": 40, "ignore_eos": True} for i in range(4)]
        manifest = self.manifest(more=SWAP.format(70), max_context=1024, max_sequences=2)
        self.expect(0, "run", manifest, "-i", self.batch(lines), "-o", self.path("r.jsonl"),
                    "--trace", self.path("run.trace"))
        ours = self.compare(self.path("run.trace"), [65, 70, 80, 95], 4)
        self.assertGreater(sum(ours[65]), sum(ours[95]))
        done = self.expect(0, "replay", self.path("run.trace"), "--verify", "--no-bound")
        self.assertIn("equal to the run", done.out)  # so libCacheSim's are those of the run, too

    def test_one_request_at_a_time_is_another_thing(self):
        # Without births every chunk is missed once more; with them, a step may evict what it is
        # about to select.
        ours = self.ours(TRACE, [107])
        for more in ((), ("--births",)):
            caches = self.export(TRACE, *more)
            plain = 0
            for requests in caches.values():
                cache = libcachesim.LRU(cache_size=107 * self.row_bytes)
                born = set()
                for _, chunk in requests:
                    is_born = more and chunk not in born
                    born.add(chunk)
                    plain += not cache.get(self.request(chunk)) and not is_born
            self.assertGreater(plain, sum(ours[107]))
            print(f"one at a time, {' '.join(more) or 'without births'}: {plain}", file=sys.stderr)


if __name__ == "__main__":
    if libcachesim is None:
        print("SKIPPED: libcachesim is not installed (pip install libcachesim)", file=sys.stderr)
        sys.exit(77)
    unittest.main()
