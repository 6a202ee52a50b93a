"""One `ebb run` of a batch, timed from outside: what the measuring scripts share."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def run_batch(program, manifest, settings, lines):
    """Results by id, seconds from start to end, and seconds of processor time. A run that fails ends
    the script."""
    with tempfile.TemporaryDirectory() as folder:
        batch = pathlib.Path(folder, "p.jsonl")
        results = pathlib.Path(folder, "r.jsonl")
        batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [program, "run", manifest, "-i", batch, "-o", results]
        for item in settings:
            command += ["--set", item]
        with open(pathlib.Path(folder, "err"), "w+") as errors:
            begin = time.monotonic()
            process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.monotonic() - begin
            if status != 0:
                errors.seek(0)
                sys.exit(f"{' '.join(map(str, command))} failed:\n{errors.read()}")
        done = {line["id"]: line for line in map(json.loads, results.read_text().splitlines())}
        return done, seconds, usage.ru_utime + usage.ru_stime
