#!/usr/bin/env python3
"""Measures a batch of short requests at several [engine] max_sequences: what decoding together is
worth against one request at a time.

  tools/measure_batch.py MANIFEST [--requests 1000] [--sequences 1,4,8,16] [--new 32] [--prompt 8,32]
      [--rounds 5] [--program build/release/bin/ebb] [--set k=v ...]

Prompts are random token ids (a fixed seed), of a length drawn from --prompt. The batch is cut into
`--rounds` parts, and each part is run at every setting before the next one begins, so that what
disturbs the machine disturbs all alike. Seconds are those of the whole process, start included.
Beside tokens per second there are tokens per second of processor time, which other processes change
less. The tokens have to be the same at every setting; if not, the status is 1.
"""

import argparse
import os
import random
import sys

from measuring import Batch, number, numbers


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest")
    parser.add_argument("--program", default="build/release/bin/ebb")
    parser.add_argument("--requests", type=number(1), default=1000)
    parser.add_argument("--sequences", type=numbers(1), default="1,4,8,16")
    parser.add_argument("--new", type=number(1), default=32)
    parser.add_argument("--prompt", type=numbers(1, 2), default="8,32", help="fewest and most tokens")
    parser.add_argument("--rounds", type=number(1), default=5)
    parser.add_argument("--vocab", type=number(4), default=4096, help="token ids are drawn below this")
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    if len(args.prompt) != 2 or args.prompt[0] > args.prompt[1]:
        parser.error("--prompt: want two numbers, the smaller one first")
    if args.rounds > args.requests:
        parser.error(f"--rounds {args.rounds}: there are {args.requests} requests")
    low, high = args.prompt
    draw = random.Random(1)
    lines = [{"id": f"r{i}", "max_tokens": args.new, "ignore_eos": True,
              "tokens": [draw.randrange(3, args.vocab) for _ in range(draw.randint(low, high))]}
             for i in range(args.requests)]
    settings = args.sequences
    wall, processor = dict.fromkeys(settings, 0.0), dict.fromkeys(settings, 0.0)
    load = [os.getloadavg()[0]]
    for first in range(args.rounds):
        tokens = {}
        for sequences in settings:
            done = Batch(args.program, args.manifest,
                         [f"engine.max_sequences={sequences}"] + args.set, lines[first::args.rounds])
            tokens[sequences] = {line["id"]: line["tokens"] for line in done.results}
            wall[sequences] += done.seconds
            processor[sequences] += done.busy
        if any(tokens[sequences] != tokens[settings[0]] for sequences in settings):
            sys.exit("the tokens differ between settings")
        load.append(os.getloadavg()[0])
    new = args.requests * args.new
    print(f"{args.requests} requests, {sum(len(line['tokens']) for line in lines)} prompt tokens, "
          f"{new} new ones; the tokens are the same at every setting")
    print(f"{'max_sequences':>13} {'seconds':>9} {'new tok/s':>10} {'times':>6} "
          f"{'tok/CPU-s':>10} {'times':>6}")
    for sequences in settings:
        rate, share = new / wall[sequences], new / processor[sequences]
        base, base_share = new / wall[settings[0]], new / processor[settings[0]]
        print(f"{sequences:13} {wall[sequences]:9.1f} {rate:10.1f} {rate / base:6.2f} "
              f"{share:10.1f} {share / base_share:6.2f}")
    print(f"load of the machine {min(load):.1f} to {max(load):.1f} over {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
