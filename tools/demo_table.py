#!/usr/bin/env python3
"""Prints the demo's results beside the right answers. Status 1 if an answer is wrong.

Usage: demo_table.py FOLDER RESULTS.jsonl     FOLDER has prompts.jsonl and expected.json
"""

import json
import pathlib
import re
import sys

USER, ASSISTANT = "<｜User｜>", "<｜Assistant｜>"


def read_lines(path):
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def question(prompt):
    return re.search(f"{USER}(.*?){ASSISTANT}", prompt, re.DOTALL).group(1)


def share(counters, part, whole):
    """In per cent; "-" where there is nothing to count."""
    return f"{100 * counters[part] / counters[whole]:.0f}" if counters and counters[whole] else "-"


def main(folder, results_path):
    folder = pathlib.Path(folder)
    expected = json.loads((folder / "expected.json").read_text(encoding="utf-8"))
    results = {line["id"]: line for line in read_lines(results_path)}
    form = "{:>8}  {:<50}  {:>8}  {:<10}  {:<5}  {:>7}  {:>7}  {:>6}  {:>6}"
    print()
    print(form.format("document", "question", "expected", "answer", "", "prefill", "decode", "kept",
                      "slots"))
    print(form.format("tokens", "", "", "", "", "tok/s", "tok/s", "%", "hit %"))
    right = tokens = 0
    seconds = 0.0
    for prompt in read_lines(folder / "prompts.jsonl"):
        name = prompt["id"]
        line = results.get(name)
        if line is None or line["error"]:
            why = line["error"]["message"] if line else "no result"
            print(form.format("-", question(prompt["prompt"]), expected[name], why, "WRONG", "", "",
                              "", ""))
            continue
        timings, n_prompt = line["timings"], line["usage"]["prompt_tokens"]
        is_right = line["text"] == expected[name] and line["finish_reason"] == "stop"
        right += is_right
        tokens += n_prompt
        seconds += timings["prefill_s"] + timings["decode_s"]
        print(form.format(n_prompt, question(prompt["prompt"]), expected[name],
                          line["text"][:10].replace("\n", " "), "right" if is_right else "WRONG",
                          f"{timings['prefill_tokens_per_s']:.0f}",
                          f"{timings['decode_tokens_per_s']:.0f}",
                          share(line["memory"], "kept", "scored"),
                          share(line["swap"], "hits", "distinct")))
    print()
    print("kept: of the complete chunks, those that forecasts let decode select among; slots hit: of"
          "\nthe chunks that decode selected, those that had a slot in compute memory")
    print(f"{right} of {len(expected)} answers right, {tokens} document tokens in {seconds:.1f} s")
    return 0 if right == len(expected) else 1


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
