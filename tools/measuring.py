"""What the measuring scripts share: a batch run by `ebb` under the clock, and how they end where they
cannot go on: status 2, and what is wrong on stderr."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time


def fail(why):
    print(f"{pathlib.Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(2)


def number(low, high=1 << 24):
    """For argparse: a whole number of `low` to `high`."""
    def parse(text):
        value = int(text) if text.isascii() and text.isdigit() else low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r}: want {low}..{high}")
        return value
    return parse


def numbers(low, least=1):
    """For argparse: whole numbers with commas between, `least` of them or more."""
    def parse(text):
        values = [number(low)(part) for part in text.split(",") if part or least]
        if len(values) < least:
            raise argparse.ArgumentTypeError(f"{text!r}: want {least} numbers or more")
        return values
    return parse


def read_text(path):
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except OSError as why:
        fail(f"{path}: {why.strerror}")
    except UnicodeDecodeError:
        fail(f"{path}: no UTF-8 text")


class Batch:
    """Runs requests: `results` as `ebb run` wrote them, `seconds` of the whole process, `busy`
    seconds of processor time, `peak` resident MiB."""

    def __init__(self, program, manifest, sets, lines):
        with tempfile.TemporaryDirectory() as folder:
            batch, results = pathlib.Path(folder, "p.jsonl"), pathlib.Path(folder, "r.jsonl")
            batch.write_text("".join(json.dumps(line) + "\n" for line in lines))
            command = [program, "run", manifest, "-i", batch, "-o", results]
            for item in sets:
                command += ["--set", item]
            with open(pathlib.Path(folder, "err"), "w+") as errors:
                begin = time.monotonic()
                try:
                    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
                except OSError as why:
                    fail(f"--program {program}: {why.strerror}")
                _, status, usage = os.wait4(process.pid, 0)
                self.seconds = time.monotonic() - begin
                process.returncode = os.waitstatus_to_exitcode(status)
                if status != 0:
                    errors.seek(0)
                    fail(f"{' '.join(map(str, command))} failed:\n{errors.read().rstrip()}")
            if not results.is_file():
                fail(f"--program {program} is no ebb: it wrote no results")
            self.results = [json.loads(line) for line in results.read_text().splitlines()]
            self.busy, self.peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
