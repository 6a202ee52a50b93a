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
import random
import subprocess

from measuring import Batch, fail, number, numbers


def active_bytes(program, model):
    """Bytes of weights that one token reads: all of them, but only the used experts and one row of
    the embedding and of each expert table."""
    done = subprocess.run([program, "inspect", model, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"--model {model}: {done.stderr.rstrip()}")
    info = json.loads(done.stdout)
    meta = info.get("metadata", {})
    if "deepseek4.expert_used_count" not in meta or not meta.get("deepseek4.expert_count"):
        fail(f"--model {model}: no model with experts")
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
    parser.add_argument("--prefill", type=numbers(1, 0), default="512,2048,8192")
    parser.add_argument("--decode", type=numbers(1, 0), default="512,4096,16384")
    parser.add_argument("--new", type=number(1), default=32)
    parser.add_argument("--rounds", type=number(1), default=3)
    parser.add_argument("--vocab", type=number(4), default=4096, help="token ids are drawn below this")
    parser.add_argument("--model", help="GGUF file, to count the bytes that a token reads")
    parser.add_argument("--bandwidth", type=float, help="measured read bandwidth, GB/s")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    prefill, decode = args.prefill, args.decode
    if not prefill + decode:
        parser.error("nothing to measure: --prefill and --decode are empty")

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
        batch = Batch(args.program, args.manifest, sets, lines)
        peak = max(peak, batch.peak)
        for result in batch.results:
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
        batch = Batch(args.program, args.manifest, args.set,
                      [{"id": "first", "tokens": ids[:16], "max_tokens": 1}])
        first.append(batch.seconds)
    print(f"start to first token, 16-token prompt, the process's end included: {min(first):.3f} s")


if __name__ == "__main__":
    main()
