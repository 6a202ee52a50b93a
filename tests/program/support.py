"""What the tests of the program share: running it, and manifests to run it with."""

import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
EBB = os.environ["EBB_PROGRAM"]  # set by ctest
FIXTURES = pathlib.Path(os.environ["EBB_FIXTURES"])
DATA = ROOT / "tests" / "data"
DEMO = ROOT / "config" / "demo"

MANIFEST = """
[engine]
max_context = {max_context}
max_sequences = {max_sequences}
prefill_chunk = 64
[loader]
module = "loader_gguf"
path = "{model}"
{tokenizer}
[compute]
module = "compute_cpu"
threads = 1
[comm]
module = "comm_self"
[attention]
module = "attention_csa"
[decoder]
module = "decoder_deepseek4"
"""


class Result:
    def __init__(self, done):
        self.status = done.returncode
        self.out = done.stdout
        self.err = done.stderr


class ProgramTest(unittest.TestCase):
    maxDiff = None

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def path(self, name):
        return str(self.folder / name)

    def write(self, name, content):
        path = self.folder / name
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            path.write_text(content, encoding="utf-8")
        return str(path)

    def manifest(self, name="m.toml", model=DEMO / "ds4-mini-q8_0.gguf", tokenizer=True,
                 max_context=512, max_sequences=1, more=""):
        section = '[tokenizer]\nmodule = "tokenizer_gguf"' if tokenizer else ""
        return self.write(name, MANIFEST.format(model=model, tokenizer=section,
                                                max_context=max_context,
                                                max_sequences=max_sequences) + more)

    def batch(self, lines, name="p.jsonl"):
        return self.write(name, "".join(json.dumps(line) + "\n" for line in lines))

    def ebb(self, *arguments, timeout=120, **more):
        """Runs the program; text comes back decoded, bytes that are no UTF-8 escaped."""
        done = subprocess.run([EBB, *map(str, arguments)], capture_output=True, timeout=timeout,
                              encoding="utf-8", errors="backslashreplace", **more)
        self.assertGreaterEqual(done.returncode, 0, f"killed by a signal: {done.stderr}")
        return Result(done)

    def expect(self, status, *arguments, **more):
        result = self.ebb(*arguments, **more)
        self.assertEqual(result.status, status, f"{arguments}\n{result.out}\n{result.err}")
        return result

    def expect_refused(self, says, *arguments, status=2, lines=1):
        """Bad input: nothing on stdout, `lines` lines on stderr that hold `says`."""
        result = self.expect(status, *arguments)
        self.assertEqual(result.out, "")
        self.assertEqual(len(result.err.splitlines()), lines, result.err)
        self.assertIn(says, result.err)
        return result

    def results(self, name="r.jsonl"):
        return [json.loads(line) for line in (self.folder / name).read_text("utf-8").splitlines()]

    def run_until_line(self, output, *arguments):
        """Starts the program and waits until `output` holds a whole line."""
        process = subprocess.Popen([EBB, *map(str, arguments)], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 100
        while time.monotonic() < deadline:
            if os.path.exists(output) and b"\n" in pathlib.Path(output).read_bytes():
                return process
            self.assertIsNone(process.poll(), "the run ended before the test could stop it")
            time.sleep(0.005)
        self.fail("no result within 100 s")


class PageTest(ProgramTest):
    """Of a page in docs/ that holds a module, file by file."""

    def build_module(self, page, name):
        """Builds the module `name` from the page itself; returns where its .so is."""
        text = (ROOT / "docs" / page).read_text()
        files = dict(re.findall(r"```\w+ file=(\S+)\n(.*?)```", text, re.DOTALL))
        self.assertEqual(sorted(files), ["CMakeLists.txt", "module.cpp", "options.toml"])
        source = self.folder / name
        source.mkdir()
        for file, content in files.items():
            (source / file).write_text(content)
        for command in (
            [os.environ["EBB_CMAKE"], "-S", source, "-B", source / "build", "-G", "Ninja",
             f"-DEBB_SOURCE={ROOT}", f"-DCMAKE_CXX_COMPILER={os.environ['EBB_CXX']}",
             f"-DCMAKE_BUILD_TYPE={os.environ['EBB_BUILD_TYPE']}",
             f"-DEBB_SANITIZE={os.environ['EBB_SANITIZE']}"],
            [os.environ["EBB_CMAKE"], "--build", source / "build"],
        ):
            done = subprocess.run(command, capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return source / "build" / "bin" / "modules" / f"{name}.so"


def stop(process, number=signal.SIGINT):
    process.send_signal(number)
    return process.wait(timeout=60)
