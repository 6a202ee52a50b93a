#!/usr/bin/env python3
"""Measures one manifest: prefill and decode speed at several lengths, memory, time to first token.

  tools/measure_speed.py MANIFEST [--program build/release/bin/ebb] [--prefill 512,2048,8192]
      [--decode 512,4096,16384] [--new 32] [--rounds 3] [--set k=v ...]

Prompts are random token ids (a fixed seed). Prefill at N is a prompt of N tokens; decode at N is
`--new` greedy tokens after a prompt of N tokens, without the first one, which prefill gives. Each
figure is the best of the rounds, since what disturbs a machine only ever slows it down; the range is
printed beside it. The share of memory bandwidth counts the weights one token reads.
"""

import argparse
import json
import os
import pathlib
import random
import resource
import subprocess
import sys
import tempfile
import time


def run(program, manifest, sets, lines):
    """Results of one batch, and the peak resident memory of the process in MiB."""
    with tempfile.TemporaryDirectory() as folder:
        prompts = pathlib.Path(folder, "prompts.jsonl")
        results = pathlib.Path(folder, "results.jsonl")
        prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = [program, "run", manifest, "-i", prompts, "-o", results]
        for item in sets:
            command += ["--set", item]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        errors = process.stderr.read().decode()
        _, status, usage = os.wait4(process.pid, 0)
        if status != 0:
            sys.exit(f"{' '.join(map(str, command))} failed:\n{errors}")
        return [json.loads(line) for line in results.read_text().splitlines()], \
            usage.ru_maxrss / 1024


def active_bytes(program, model):
    """Bytes of weights that one token reads: all of them, but only the used experts and one row of
    the embedding and of each expert table."""
    info = json.loads(subprocess.run([program, "inspect", model, "--json"], check=True,
                                     capture_output=True).stdout)
    meta = info["metadata"]
    share = meta["deepseek4.expert_used_count"] / meta["deepseek4.expert_count"]
    total = 0
    for tensor in info["tensors"]:
        if tensor["name"] == "token_embd.weight" or "tid2eid" in tensor["name"]:
            continue
        total += tensor["bytes"] * (share if "_exps." in tensor["name"] else 1)
    return total


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest")
    parser.add_argument("--program", default="build/release/bin/ebb")
    parser.add_argument("--prefill", default="512,2048,8192")
    parser.add_argument("--decode", default="512,4096,16384")
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocab", type=int, default=4096, help="token ids are drawn below this")
    parser.add_argument("--model", help="GGUF file, to count the bytes that a token reads")
    parser.add_argument("--bandwidth", type=float, help="measured read bandwidth, GB/s")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    prefill = [int(n) for n in args.prefill.split(",") if n]
    decode = [int(n) for n in args.decode.split(",") if n]

    draw = random.Random(1)
    sizes = sorted(set(prefill + decode))
    longest = max(sizes)
    ids = [draw.randrange(3, args.vocab) for _ in range(longest)]
    sets = [f"engine.max_context={longest + args.new}"] + args.set
    lines = [{"id": str(n), "tokens": ids[:n], "max_tokens": args.new if n in decode else 1,
              "ignore_eos": True} for n in sizes]
    rates = {}
    peak = 0
    for _ in range(args.rounds):
        results, memory = run(args.program, args.manifest, sets, lines)
        peak = max(peak, memory)
        for result in results:
            n, timings = int(result["id"]), result["timings"]
            if n in prefill:
                rates.setdefault(("prefill", n), []).append(n / timings["prefill_s"])
            made = len(result["tokens"]) - 1
            if n in decode and made > 0:
                rates.setdefault(("decode", n), []).append(made / timings["decode_s"])
    bytes_per_token = active_bytes(args.program, args.model) if args.model else None
    print(f"{'':8} {'tokens':>7} {'best tok/s':>11} {'range':>19} {'weights GB/s':>13} {'share':>6}")
    for (what, n), values in sorted(rates.items(), key=lambda item: (item[0][0] != "prefill", item[0][1])):
        best = max(values)
        speed = share = ""
        if what == "decode" and bytes_per_token:
            speed = f"{best * bytes_per_token / 1e9:.2f}"
            if args.bandwidth:
                share = f"{best * bytes_per_token / 1e9 / args.bandwidth:.0%}"
        print(f"{what:8} {n:7} {best:11.2f} {min(values):9.2f}..{max(values):<8.2f} {speed:>13} {share:>6}")
    print(f"peak resident memory {peak:.1f} MiB")

    first = []
    for _ in range(args.rounds):
        start = time.monotonic()
        run(args.program, args.manifest, args.set,
            [{"id": "first", "tokens": ids[:16], "max_tokens": 1}])
        first.append(time.monotonic() - start)
    print(f"start to first token, 16-token prompt, the process's end included: {min(first):.3f} s")


if __name__ == "__main__":
    main()
