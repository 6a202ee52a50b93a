#!/usr/bin/env python3
"""Measures questions about shared documents with and without [engine] prefix_sequences: what it is
worth to feed a document once.

  tools/measure_prefixes.py MANIFEST [--text tests/data/prose_heldout.txt] [--characters 30300]
      [--documents 1] [--questions 20] [--new 16] [--held 1] [--rounds 3]
      [--program build/release/bin/ebb] [--set k=v ...]

Each document is as many characters of the text, the next one the characters behind; the questions
of all documents come in turns. In a round, the batch is run without, then with `--held` sequences
for prefixes. Seconds are those of the whole process, start included, the median of the rounds. The
tokens have to be the same; if not, the status is 1.
"""

import argparse
import os
import statistics
import sys

from measuring import Batch, fail, number, read_text


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("manifest")
    parser.add_argument("--program", default="build/release/bin/ebb")
    parser.add_argument("--text", default="tests/data/prose_heldout.txt")
    parser.add_argument("--characters", type=number(1), default=30300, help="of a document")
    parser.add_argument("--documents", type=number(1), default=1)
    parser.add_argument("--questions", type=number(1), default=20, help="about each document")
    parser.add_argument("--new", type=number(1), default=16)
    parser.add_argument("--held", type=number(1, 1024), default=1)
    parser.add_argument("--rounds", type=number(1), default=3)
    parser.add_argument("--set", action="append", default=[])
    args = parser.parse_args()
    text = read_text(args.text)
    if len(text) < args.characters * args.documents:
        fail(f"{args.text} has {len(text)} characters")
    lines = []
    for i in range(args.questions * args.documents):
        at = i % args.documents * args.characters
        lines.append({"id": f"q{i}", "max_tokens": args.new, "ignore_eos": True, "specials": True,
                      "prompt": "<｜begin▁of▁sentence｜>" + text[at:at + args.characters]
                      + f"<｜User｜>What is number {i}?<｜Assistant｜></think>"})
    settings = [0, args.held]
    wall, busy = {held: [] for held in settings}, {held: [] for held in settings}
    fed, load = {}, [os.getloadavg()[0]]
    for _ in range(args.rounds):
        tokens = {}
        for held in settings:
            done = Batch(args.program, args.manifest,
                         args.set + [f"engine.prefix_sequences={held}"], lines)
            wall[held].append(done.seconds)
            busy[held].append(done.busy)
            tokens[held] = {line["id"]: line["tokens"] for line in done.results}
            usage = [line["usage"] for line in done.results]
            fed[held] = sum(one["prompt_tokens"] - one["prompt_tokens_details"]["cached_tokens"]
                            for one in usage)
        load.append(os.getloadavg()[0])
        if tokens[0] != tokens[args.held]:
            sys.exit("the tokens differ between settings")
    print(f"{len(lines)} requests about {args.documents} documents, {fed[0]} prompt tokens, "
          f"{len(lines) * args.new} new ones; the tokens are the same")
    print(f"{'prefix_sequences':>16} {'tokens fed':>11} {'seconds':>9} {'times':>6} "
          f"{'CPU seconds':>12} {'times':>6}")
    for held in settings:
        seconds, processor = statistics.median(wall[held]), statistics.median(busy[held])
        print(f"{held:16} {fed[held]:11} {seconds:9.2f} "
              f"{statistics.median(wall[0]) / seconds:6.2f} {processor:12.2f} "
              f"{statistics.median(busy[0]) / processor:6.2f}")
    print(f"load of the machine {min(load):.1f} to {max(load):.1f} over {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
