#!/usr/bin/env python3
"""Makes task files for `ebb eval needles`: facts hidden in a text, and a question about them.

  tools/make_needles.py TEXT... -o needles.jsonl [--task single,multi_key,multi_value,variables]
      [--lengths 1K,4K,16K] [--count 10] [--seed 0] [--manifest MANIFEST [--program ebb]]

  single       one fact ("The room number of Kit is 1825."), asked for in chat form: the kind of
               question that the bundled model was trained on
  multi_key    the same with --keys facts of one sort about different names, of which one is asked for
  multi_value  --values facts of one sort about one name; all are to be told
  variables    a chain of --hops variables that take each other's value, and one other chain; all
               variables of one value are to be told
The last two are lines with "answers", of which each must be in the output. After the tasks of RULER
(arXiv:2404.06654).

A prompt has at most as many tokens as --lengths says. With --manifest, `ebb` counts them with the
model's tokenizer, and prompts come within a twentieth of the length; without, they are taken from
bytes, --bytes-per-token (3.7 is what prose has with the bundled model's tokenizer), and 5 % are
left for error (`variables` can still come out a few tokens longer). The text begins at a random
sentence, and begins anew at its end. The asked fact stands at depths spread evenly over the text.
The same arguments give the same file.
"""

import argparse
import itertools
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

PROMPT = "<｜begin▁of▁sentence｜>{text}<｜User｜>{question}<｜Assistant｜></think>"
SORTS = ("access code", "account number", "badge number", "invoice number", "locker number",
         "lucky number", "phone number", "room number", "seat number", "ticket number")
FACTS = ("The {sort} of {name} is {value}.", "For {name}, the {sort} is {value}.",
         "It is well known that the {sort} of {name} is {value}.",
         "Remember that the {sort} of {name} is {value}.",
         "{name} wrote down the {sort}: {value}.")
TASKS = ("single", "multi_key", "multi_value", "variables")
MAX_FACTS = 1000
TOKENS_OF_A_FACT = 8  # or more


def sentences_of(text):
    """The text cut behind ends of sentences; the spaces stay with the sentence before them."""
    ends = [match.end() for match in re.finditer(r"[.!?][\"'”’]?(?=\s+[\"'“‘]?[A-Z])", text)
            if not re.search(r"\b(Mr|Mrs|Dr|St)\.$", text[:match.end()][-5:])]
    parts = [text[a:b] for a, b in zip([0] + ends, ends + [len(text)])]
    return [part for part in parts if part.strip()]


def draw_name(draw, text):
    def word():
        return (draw.choice("B C D F G H K L M N P R S T V Br Cl Cr Dr Fl Gl Gr Pl Pr Qu Sh Sl Th Tr"
                            .split()) + draw.choice("a e i o u ai ea ee oa ou".split())
                + draw.choice("b d ck ff g ld m nd n r rd rt st t th".split())
                + draw.choice(("", "", "by", "er", "field", "ford", "ham", "ley", "man", "ton")))
    while True:
        name = word() if draw.random() < 0.5 else f"{word()} {word()}"
        if name not in text:
            return name


def draw_number(draw, taken):
    while True:
        number = "".join(draw.choice("0123456789") for _ in range(draw.randint(4, 6)))
        if number not in taken:
            taken.add(number)
            return number


def draw_facts(task, draw, text, args):
    """Facts (the first is at the depth that is asked for), question, and the answer's keys."""
    numbers = set()

    def fact(sort, name, value):
        return draw.choice(FACTS).format(sort=sort, name=name, value=value)

    if task == "variables":
        chains = []
        for _ in range(2):
            names = ["".join(draw.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(5))
                     for _ in range(args.hops)]
            value = draw_number(draw, numbers)
            chain = [f"VAR {names[0]} = {value}."]
            chain += [f"VAR {b} = VAR {a}." for a, b in zip(names, names[1:])]
            chains.append((chain, names, value))
        (asked, names, value), (other, _, _) = chains
        return asked + other, f"Which variables have the value {value}?", {"answers": names}
    sort, name = draw.choice(SORTS), draw_name(draw, text)
    question = f"What is the {sort} of {name}?"
    if task == "multi_value":
        values = [draw_number(draw, numbers) for _ in range(args.values)]
        return ([fact(sort, name, value) for value in values],
                f"What are the {sort}s of {name}?", {"answers": values})
    names = [name]
    while task == "multi_key" and len(names) < args.keys:
        other = draw_name(draw, text)
        if all(other not in known and known not in other for known in names):
            names.append(other)
    values = [draw_number(draw, numbers) for _ in names]
    return ([fact(sort, n, v) for n, v in zip(names, values)], question, {"answer": values[0]})


class Needle:
    """One line: facts and where they stand, with as much text around them as it is told."""

    def __init__(self, task, length, number, sentences, text, args):
        draw = random.Random(f"{args.seed} {task} {length} {number}")
        self.sentences = sentences
        self.first = draw.randrange(len(sentences))
        self.length = length
        self.facts, self.question, self.answer = draw_facts(task, draw, text, args)
        # Evenly over the text, each somewhere in its part; a chain keeps its order.
        self.depth = round(0.02 + 0.96 * (number + draw.random()) / args.count, 4)
        depths = [draw.random() for _ in self.facts]
        if task == "variables":
            asked = sorted([self.depth] + depths[1:args.hops])
            depths = asked + sorted(depths[args.hops:])
        else:
            depths[0] = self.depth
        self.depths = depths
        self.task = task
        self.id = f"{task}-{length}-{number:02d}"
        self.bytes = 0

    def line(self):
        """About self.bytes of text, at least a sentence."""
        body, size, at = [], sum(len(fact) + 1 for fact in self.facts), self.first
        while not body or size + len(self.sentences[at].encode()) <= self.bytes:
            body.append(self.sentences[at])
            size += len(body[-1].encode())
            at = (at + 1) % len(self.sentences)
        # Each behind the sentence that ends nearest to its depth.
        ends = list(itertools.accumulate(map(len, body)))
        places = {}
        for fact, depth in zip(self.facts, self.depths):
            nearest = min(range(len(body)), key=lambda i: abs(ends[i] - depth * ends[-1]))
            places.setdefault(nearest, []).append(fact)
        pieces = []
        for i, sentence in enumerate(body):
            pieces.append(sentence)
            pieces += [" " + fact for fact in places.get(i, ())]
        prompt = PROMPT.format(text="".join(pieces).strip(), question=self.question)
        return {"id": self.id, "task": self.task, "length": self.length, "depth": self.depth,
                "prompt": prompt, **self.answer}


def count_tokens(lines, args):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "needles.jsonl")
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        try:
            done = subprocess.run([args.program, "eval", "needles", args.manifest, "-i", path,
                                   "--count"], capture_output=True, text=True)
        except OSError as why:
            sys.exit(f"make_needles.py: --program {args.program}: {why.strerror}")
    if done.returncode != 0:
        sys.exit(f"make_needles.py: {args.program} cannot count tokens: {done.stderr.strip()}")
    try:
        counts = [json.loads(line)["n_tokens"] for line in done.stdout.splitlines()]
    except (ValueError, KeyError, TypeError):
        counts = []
    if len(counts) != len(lines):
        sys.exit(f"make_needles.py: --program {args.program} is no ebb: it did not count tokens")
    return counts


def make(needles, args):
    for needle in needles:
        needle.bytes = int(0.95 * needle.length * args.bytes_per_token)
    if not args.manifest:
        return [needle.line() for needle in needles]
    best = [None] * len(needles)  # the longest line yet that is not too long
    left = range(len(needles))
    for _ in range(6):
        lines = [needles[i].line() for i in left]
        counts = count_tokens(lines, args)
        for i, line, count in zip(left, lines, counts):
            needle = needles[i]
            line["n_tokens"] = count
            if count <= needle.length and (best[i] is None or count > best[i]["n_tokens"]):
                best[i] = line
            needle.bytes = max(1, int(needle.bytes * 0.98 * needle.length / count))
        left = [i for i in left if best[i] is None
                or best[i]["n_tokens"] < 0.95 * needles[i].length]
        if not left:
            break
    for needle, line in zip(needles, best):
        if line is None:
            sys.exit(f"make_needles.py: {needle.id}: question, facts and one sentence take more than "
                     f"{needle.length} tokens")
    return best


def parse_length(text):
    match = re.fullmatch(r"(\d+)([KkMm]?)", text)
    value = int(match[1]) << {"": 0, "k": 10, "m": 20}[match[2].lower()] if match else 0
    if not 32 <= value <= 1 << 24:
        raise argparse.ArgumentTypeError(f"{text}: want 32..16M tokens, as 1K,4K")
    return value


def positive(text):
    value = int(text)
    if not 1 <= value <= 1000000:
        raise argparse.ArgumentTypeError(f"{text}: want 1..1000000")
    return value


def few(text):
    value = int(text)
    if not 1 <= value <= MAX_FACTS:
        raise argparse.ArgumentTypeError(f"{text}: want 1..{MAX_FACTS}")
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="files of UTF-8 text")
    parser.add_argument("-o", "--output", required=True)
    parser.add_argument("--task", default="single", help="one or several with commas, or all")
    parser.add_argument("--lengths", default="1K,4K,16K", help="tokens of a prompt at most")
    parser.add_argument("--count", type=positive, default=10, help="of each task and length")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keys", type=few, default=4)
    parser.add_argument("--values", type=few, default=4)
    parser.add_argument("--hops", type=few, default=4, help="variables of a chain")
    parser.add_argument("--bytes-per-token", type=float, default=3.7)
    parser.add_argument("--manifest", help="whose tokenizer counts")
    parser.add_argument("--program", default="build/release/bin/ebb")
    args = parser.parse_args()
    tasks = TASKS if args.task == "all" else args.task.split(",")
    for task in tasks:
        if task not in TASKS:
            parser.error(f"--task {task}: want {', '.join(TASKS)} or all")
        if tasks.count(task) > 1:
            parser.error(f"--task {args.task}: {task} stands in it twice")
    try:
        lengths = [parse_length(length) for length in args.lengths.split(",")]
        text = "\n\n".join(pathlib.Path(path).read_text(encoding="utf-8") for path in args.text)
    except (OSError, UnicodeDecodeError, argparse.ArgumentTypeError) as why:
        parser.error(str(why))
    for length in lengths:
        if lengths.count(length) > 1:
            parser.error(f"--lengths {args.lengths}: {length} stands in it twice")
    facts = {"multi_key": args.keys, "multi_value": args.values, "variables": 2 * args.hops}
    for task in tasks:
        if facts.get(task, 1) * TOKENS_OF_A_FACT > min(lengths):
            parser.error(f"--task {task}: {facts[task]} facts do not fit into {min(lengths)} tokens: "
                         f"want {min(lengths) // TOKENS_OF_A_FACT} or less")
    if not 0.1 <= args.bytes_per_token <= 100:
        parser.error(f"--bytes-per-token {args.bytes_per_token}: want 0.1..100")
    sentences = sentences_of(text)
    if len(sentences) < 10:
        parser.error(f"{len(sentences)} sentences of text: want 10 or more")
    needles = [Needle(task, length, number, sentences, text, args)
               for task in tasks for length in lengths for number in range(args.count)]
    lines = make(needles, args)
    try:
        with open(args.output, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    except OSError as why:
        sys.exit(f"make_needles.py: --output {args.output}: {why.strerror}")
    print(f"{len(lines)} needles in {args.output}")


if __name__ == "__main__":
    main()
