#!/usr/bin/env python3
"""Makes documents to train scorers on: an excerpt of a text with invented facts in it, then questions
about them with their answers, in the chat form of DeepSeek-V4 models. For `ebb dump`.
"""

import json
import math
import pathlib
import random
import re

from failures import SEED, Parser, blaming, number, run, whole

BOS, EOS = "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜></think>"

KINDS = ("access code", "account number", "badge number", "invoice number", "locker number",
         "lucky number", "phone number", "room number", "seat number", "ticket number")
FORMS = ("The {what} of {who} is {number}.", "For {who}, the {what} is {number}.",
         "It is well known that the {what} of {who} is {number}.",
         "Remember that the {what} of {who} is {number}.",
         "{who} wrote down the {what}: {number}.")
STARTS = ("b br c ch cl cr d dr f fl fr g gl gr h j k kr l m n p ph pl pr qu r s sh sl st t th tr v "
          "w y z").split()
VOWELS = "a e i o u ai ea ee ie oa ou oi ei".split()
ENDS = "b ck d ft g ld ll m n nd ng nk p r rd rn rt s st t th x".split()
TAILS = "ton ham ley ford by well more field worth wick ster man ard er low".split()


def invent_name(rng):
    def word():
        syllable = rng.choice(STARTS) + rng.choice(VOWELS) + rng.choice(ENDS + [""] * 4)
        return (syllable + (rng.choice(TAILS) if rng.random() < 0.6 else "")).capitalize()

    return word() + (" " + word() if rng.random() < 0.6 else "")


def read_texts(paths):
    """Paragraphs on one line each, with an empty line between."""
    texts = []
    for path in paths:
        with blaming(path):
            text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
        paragraphs = (" ".join(part.split()) for part in re.split(r"\n\s*\n", text))
        texts.append("\n\n".join(part for part in paragraphs if part))
    return texts


def excerpt(text, length, rng):
    """About `length` characters from a sentence's start to a sentence's end."""
    length = min(length, len(text))
    start = rng.randrange(len(text) - length + 1)
    piece = text[start:start + length]
    ends = [match.end() for match in re.finditer(r"[.!?][\"'”’]?\s+", piece)]
    if len(ends) < 3:
        return piece
    return piece[ends[0]:ends[-1]].rstrip()


def make_document(text, length, n_questions, rng):
    piece = excerpt(text, length, rng)
    facts, names = [], set()
    while len(facts) < n_questions:
        who = invent_name(rng)
        if who in names:
            continue
        names.add(who)
        number = "".join(rng.choice("0123456789") for _ in range(rng.randint(4, 6)))
        facts.append((who, rng.choice(KINDS), number))
    ends = [match.end() for match in re.finditer(r"[.!?][\"'”’]?\s+", piece)] or [0]
    places = sorted(((rng.choice(ends), fact) for fact in facts), key=lambda pair: -pair[0])
    for place, (who, what, number) in places:
        fact = rng.choice(FORMS).format(who=who, what=what, number=number)
        piece = piece[:place] + fact + " " + piece[place:]
    rng.shuffle(facts)
    turns = (f"{USER}What is the {what} of {who}?{ASSISTANT}{number}{EOS}"
             for who, what, number in facts)
    return BOS + piece + "".join(turns)


def main():
    parser = Parser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", nargs="+", metavar="TEXT", help="plain text, UTF-8")
    parser.add_argument("-o", "--output", required=True, metavar="FILE.jsonl")
    parser.add_argument("-n", type=whole(1), default=100, help="documents")
    parser.add_argument("--seed", type=SEED, default=0)
    parser.add_argument("--tokens", type=whole(1), nargs=2, default=(1000, 16000), metavar=("LOW", "HIGH"),
                        help="length, drawn evenly by its logarithm")
    parser.add_argument("--characters-per-token", type=number(0.1, 100), default=3.6)
    parser.add_argument("--questions", type=whole(1, 1000), default=8, help="at most; 1 or more")
    args = parser.parse_args()
    if args.tokens[0] > args.tokens[1]:
        raise SystemExit("--tokens: want the smaller number first")
    rng = random.Random(args.seed)
    texts = read_texts(args.texts)
    if not any(texts):
        raise SystemExit("no text in any of the files")
    low, high = (math.log(n * args.characters_per_token) for n in args.tokens)
    with open(args.output, "w", encoding="utf-8") as file:
        for i in range(args.n):
            text = rng.choices(texts, weights=[len(text) for text in texts])[0]
            length = int(math.exp(rng.uniform(low, high)))
            document = make_document(text, length, rng.randint(1, args.questions), rng)
            line = {"id": f"d{args.seed}-{i:04d}", "specials": True, "prompt": document}
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    run(main)
