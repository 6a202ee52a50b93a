"""A long batch takes no more memory at its end than at its beginning."""

import json
import os
import pathlib
import subprocess
import time
import unittest

from support import DATA, EBB, ProgramTest

N_REQUESTS = int(os.environ.get("EBB_REQUESTS", "50000"))
SWAP = '[swap]\nmodule = "swap_lru"\nslots = 12\n'


class Many(ProgramTest):
    def test_memory_is_flat_over_many_requests(self):
        manifest = self.manifest(model=DATA / "models" / "tiny_kmix.gguf", tokenizer=False,
                                 max_context=64, max_sequences=4, more=SWAP)
        batch = self.batch([{"id": f"r{i}", "tokens": [1 + i % 90, 2 + i % 7] + [3] * (i % 5),
                             "max_tokens": 1 + i % 3, "ignore_eos": True}
                            for i in range(N_REQUESTS)])
        output = pathlib.Path(self.path("r.jsonl"))
        process = subprocess.Popen([EBB, "run", manifest, "-i", batch, "-o", output],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        begin = time.monotonic()
        size, seen = [], []  # of the output in bytes; of the process in KiB
        while process.poll() is None:
            try:
                status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
                line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
                size.append(output.stat().st_size)
                seen.append(int(line.split()[1]))
            except (OSError, StopIteration):
                pass  # it is ending, or has not begun
            time.sleep(0.05)
        self.assertEqual(process.returncode, 0)
        with open(output, encoding="utf-8") as file:
            ids = {json.loads(line)["id"] for line in file}
        self.assertEqual(len(ids), N_REQUESTS)
        whole = output.stat().st_size
        early = max(kib for at, kib in zip(size, seen) if at <= whole / 10)
        late = max(kib for at, kib in zip(size, seen) if at >= whole * 9 / 10)
        print(f"{N_REQUESTS} requests in {time.monotonic() - begin:.0f} s: {early} KiB in the first "
              f"tenth, {late} KiB in the last")
        self.assertLess(late - early, 512)


if __name__ == "__main__":
    unittest.main()
