#!/usr/bin/env python3
"""Judges scorers on dumped documents that they were not trained on: the tables of a training record."""

import json
import pathlib

from failures import TOKEN, TOKEN_OR_NONE, Parser, blaming, need, run

need("numpy", "torch", "safetensors")

from safetensors.torch import load_file  # noqa: E402

from dumps import pick_device, read_dumps  # noqa: E402
from items import Item  # noqa: E402
from labels import Settings  # noqa: E402
from record import add_metric_arguments, evaluate, metric_lines  # noqa: E402
from scorer import PARTS, Scorer  # noqa: E402


def read_scorers(path, about, device):
    """Scorers of the layers of the dump that the file has, by layer."""
    with blaming(path):
        tensors = load_file(path)
    scorers = {}
    for entry in about["layers"]:
        prefix = f"retrievers.l{entry['ordinal']}."
        if prefix + PARTS[0] not in tensors:
            continue
        with blaming(path):
            weights = {part: tensors[prefix + part].float() for part in PARTS}
            rank = weights["wq_a.weight"].shape[0]
            scorer = Scorer(about, rank, weights["weights_proj.weight"].shape[0])
            scorer.load_state_dict(weights)
        scorers[entry["layer"]] = scorer.to(device)
    if not scorers:
        raise SystemExit(f"{path}: no scorer of a layer in the dump")
    return scorers


def main():
    parser = Parser(description=__doc__)
    parser.add_argument("dumps", nargs="+", metavar="DUMP")
    parser.add_argument("--scorers", required=True, metavar="FILE.safetensors")
    parser.add_argument("--json", metavar="FILE", help="everything by layer and age")
    parser.add_argument("--focus-token", type=TOKEN, help="forecasts at rows of this token")
    parser.add_argument("--end-token", type=TOKEN_OR_NONE, default=-1, help="an interval ends behind it")
    parser.add_argument("--device", default="auto")
    add_metric_arguments(parser)
    args = parser.parse_args()
    device = pick_device(args.device)
    about, documents = read_dumps(args.dumps, device)
    settings = Settings(end_token=args.end_token)
    items = [Item(document, settings, args.focus_token) for document in documents]
    items = [item for item in items if item.is_usable()]
    if not items:
        raise SystemExit("no document with more chunks than the model selects: nothing to judge")
    metrics = evaluate(items, read_scorers(args.scorers, about, device), args, device)
    print("\n".join(metric_lines(metrics, f"{len(items)} documents")))
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(metrics, indent=1) + "\n")


if __name__ == "__main__":
    run(main)
