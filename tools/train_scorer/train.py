#!/usr/bin/env python3
"""Trains scorers from dumps of `ebb dump`; see README.md.

Writes OUT/scorer.safetensors, OUT/training.json and OUT/training.md.
"""

import json
import math
import pathlib
import random
import time

from failures import (SEED, TOKEN, TOKEN_OR_NONE, Parser, blaming, need, number, run,
                      whole)

need("numpy", "torch", "safetensors")

import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

from dumps import pick_device, read_dumps  # noqa: E402
from items import Item  # noqa: E402
from labels import Settings, sample  # noqa: E402
from metrics import AGES, ensemble_logits, mean_of  # noqa: E402
from record import add_metric_arguments, evaluate, print_tables, write_record  # noqa: E402
from scorer import PARTS, Scorer, score  # noqa: E402


def parse_arguments(arguments=None):
    parser = Parser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("dumps", nargs="+", metavar="DUMP", help="folders that `ebb dump` wrote")
    add("-o", "--output", required=True, metavar="OUT", help="a folder; made if it is absent")
    add("--note", action="append", default=[], help="a line about the data for the record")
    add("--layers", type=whole(0, 65535), nargs="+", help="decoder layers that get a scorer (default: all)")
    add("--rank", type=whole(1, 8192), default=128, help="of the query latent")
    add("--heads", type=whole(1, 1024), default=16)
    add("--init", metavar="FILE", help="what init_from_gguf.py wrote; sets the rank")
    add("--dtype", choices=("f32", "bf16"), default="f32", help="of the written weights")
    add("--device", default="auto")
    add("--seed", type=SEED, default=0)
    group = parser.add_argument_group("labels")
    for name, kind, text in (
            ("top_p", number(0.001, 1), "share of a layer's softmax that its golden prefix holds"),
            ("min_layers", whole(1, 65535), "layers that must agree"),
            ("interval", whole(1, AGES), "tokens ahead"),
            ("max_pos", whole(1), "positives of a row at most"),
            ("neg_ratio", number(0, 1e6), "negatives for each positive"),
            ("hard", whole(0), "of the best scored wrong chunks, per row"),
            ("end_token", TOKEN_OR_NONE, "an interval ends behind it; -1: none")):
        group.add_argument("--" + name.replace("_", "-"), type=kind,
                           default=getattr(Settings, name), help=text)
    group.add_argument("--weigh", choices=("votes", "mass"), default=Settings.weigh,
                       help="positives by")
    group = parser.add_argument_group("training")
    add = group.add_argument
    add("--steps", type=whole(1), default=2000)
    add("--minutes", type=number(0, 1e6), default=0, help="end the schedule after so long; 0: by steps")
    add("--rows", type=whole(1, 65536), default=64, help="of one document")
    add("--documents", type=whole(1, 65536), default=4, help="of one step")
    add("--lr", type=number(1e-9, 100), default=1e-3)
    add("--weight-decay", type=number(0, 100), default=0.01)
    add("--warmup", type=whole(1), default=50, help="steps")
    add("--clip", type=number(1e-9, 1e9), default=1.0)
    add("--joint", type=number(0, 1e6), default=0.0,
        help="weight of the loss of the scorers' maximum, beside the mean of their own")
    add("--focus-token", type=TOKEN, help="rows of this token are drawn more often")
    add("--focus-share", type=number(0, 1), default=0.4, help="of a batch, if a document has them")
    add("--validation", type=number(0, 1), default=0.15, help="share of the documents")
    add("--evaluate-every", type=whole(0), default=0, metavar="STEPS", help="0: at the end only")
    add_metric_arguments(parser)
    return parser.parse_args(arguments)


def make_scorers(about, items, args, device):
    found = {layer["layer"]: layer["ordinal"] for layer in about["layers"]}
    layers = args.layers or sorted(found)
    for layer in layers:
        if layer not in found:
            raise SystemExit(f"--layers {layer}: the dump has {sorted(found)}")
    init = None
    if args.init:
        with blaming(f"--init {args.init}"):
            init = load_file(args.init)
            args.rank = init[f"layer_{layers[0]}.wq_a.weight"].shape[0]
            if not all(f"layer_{layer}.{part}" in init for layer in layers for part in PARTS):
                raise KeyError("indexer of every layer")
    if init:
        measure_use(init, items[:8], layers)
    scorers = {}
    for layer in layers:
        scorer = Scorer(about, args.rank, args.heads)
        with torch.no_grad():
            scorer.weights_proj.weight.mul_(0.5)
            if init:
                with blaming(f"--init {args.init}"):
                    indexer = {part: init[f"layer_{layer}.{part}"] for part in (*PARTS, "use")}
                    start_from_indexer(scorer, indexer)
        scorers[layer] = scorer.to(device)
    return scorers, {layer: found[layer] for layer in layers}


def start_from_indexer(scorer, indexer):
    """Takes over the model's indexer, or the heads of it that were used most; the rest stay random
    and weigh little. The scale of the head weights depends on the number of heads: keep the logits.
    """
    n_all = indexer["weights_proj.weight"].shape[0]
    d = indexer["wq_b.weight"].shape[0] // n_all
    if d != scorer.d:
        raise SystemExit(f"--init: heads of {d}: the dump's keys have {scorer.d}")
    best = torch.argsort(indexer["use"], descending=True)[:scorer.n_heads]
    scorer.wq_a.weight.copy_(indexer["wq_a.weight"])
    scorer.q_norm_weight.copy_(indexer["q_norm_weight"])
    n = len(best)
    scorer.wq_b.weight[:n * d] = indexer["wq_b.weight"].reshape(n_all, d, -1)[best].reshape(n * d, -1)
    scorer.weights_proj.weight[n:] *= 0.1
    scorer.weights_proj.weight[:n] = (indexer["weights_proj.weight"][best]
                                      * math.sqrt(scorer.n_heads / n_all))


def measure_use(init, items, layers):
    """How much each head of the model's indexer tells chunks apart, by layer."""
    for layer in layers:
        use = 0
        for item in items:
            rows = item.rows.draw(64, 0.5, None)
            q, weight = item.document.index(layer, rows)
            products = torch.relu(torch.matmul(q, item.document.keys(layer).T))
            use = use + (products.std(-1) * weight.abs()).mean(0)
        init[f"layer_{layer}.use"] = use.cpu()


def loss_of(item, rows, scorers, offset, args, generator):
    document, labels = item.document, item.labels
    wrong = None
    if args.hard > 0:
        with torch.no_grad():
            wrong = ensemble_logits(scorers, document, rows)
    ids, target, weight = sample(labels, rows, generator, wrong)
    total, best = 0, None
    for layer, scorer in scorers.items():
        q, head_weight = scorer.queries(document.hidden(layer, rows), document.position[rows])
        logits = score(q, head_weight, document.keys(layer)[ids])
        total = total + weighted_bce(logits + offset, target, weight) / len(scorers)
        best = logits if best is None else torch.maximum(best, logits)
    if args.joint > 0:
        total = total + args.joint * weighted_bce(best + offset, target, weight)
    return total


def weighted_bce(logits, target, weight):
    losses = torch.nn.functional.binary_cross_entropy_with_logits(logits, target, reduction="none")
    return (losses * weight).sum() / weight.sum().clamp(min=1e-6)


def train(items, validation, scorers, args, device):
    generator = torch.Generator(device=device).manual_seed(args.seed)
    chooser = random.Random(args.seed)
    # One constant for all scorers, so that a positive logit means golden: no part of the weights.
    offset = torch.zeros((), device=device, requires_grad=True)
    parameters = [p for scorer in scorers.values() for p in scorer.parameters()]
    optimiser = torch.optim.AdamW(
        [{"params": parameters, "weight_decay": args.weight_decay},
         {"params": [offset], "weight_decay": 0.0}], lr=args.lr)
    started, curve, total, step = time.time(), [], 0.0, 0
    while True:
        done = (time.time() - started) / (60 * args.minutes) if args.minutes else step / args.steps
        if done >= 1:
            break
        rate = args.lr * min((step + 1) / args.warmup, 0.5 + 0.5 * math.cos(math.pi * done))
        for group in optimiser.param_groups:
            group["lr"] = rate
        optimiser.zero_grad(set_to_none=True)
        step_loss = torch.zeros((), device=device)
        for _ in range(args.documents):
            item = chooser.choice(items)
            rows = item.rows.draw(args.rows, args.focus_share, generator)
            loss = loss_of(item, rows, scorers, offset, args, generator) / args.documents
            loss.backward()
            step_loss += loss.detach()
        torch.nn.utils.clip_grad_norm_([*parameters, offset], args.clip)
        optimiser.step()
        step += 1
        total = total + step_loss
        if step % 50 == 0:
            entry = {"step": step, "seconds": round(time.time() - started, 1),
                     "loss": round(float(total) / 50, 5), "lr": rate}
            total = 0.0
            if validation and args.evaluate_every and step % args.evaluate_every == 0:
                report = evaluate(validation, scorers, args, device, body_rows=2)
                entry["recall_10"] = {name: round(mean_of(one, "scorer", 0.10, "recall"), 4)
                                      for name, one in report.items()}
            curve.append(entry)
            print(json.dumps(entry), flush=True)
    return curve, step, float(offset)


def write_weights(path, scorers, ordinals, args, offset):
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    tensors = {}
    for layer, scorer in scorers.items():
        weights = scorer.state_dict()
        for part in PARTS:
            tensors[f"retrievers.l{ordinals[layer]}.{part}"] = (
                weights[part].detach().to(dtype).cpu().contiguous())
    save_file(tensors, str(path), metadata={"logit_offset": f"{offset:.6f}"})
    # What is judged is what is written.
    for layer, scorer in scorers.items():
        scorer.load_state_dict({part: tensors[f"retrievers.l{ordinals[layer]}.{part}"].float()
                                for part in PARTS})


def main():
    args = parse_arguments()
    torch.manual_seed(args.seed)
    device = pick_device(args.device)
    folder = pathlib.Path(args.output)
    folder.mkdir(parents=True, exist_ok=True)
    about, documents = read_dumps(args.dumps, device)
    if args.min_layers > len(about["layers"]):
        raise SystemExit(f"--min-layers {args.min_layers}: the dump has {len(about['layers'])} layers")
    settings = Settings(**{field: getattr(args, field) for field in (
        "top_p", "min_layers", "interval", "max_pos", "neg_ratio", "hard", "weigh", "end_token")})
    items = [Item(document, settings, args.focus_token) for document in documents]
    items = [item for item in items if item.is_usable()]
    if not items:
        raise SystemExit("no document with more chunks than the model selects: nothing to learn")
    n_rows = sum(item.document.n_rows for item in items)
    random.Random(f"{args.seed} split").shuffle(items)
    n_validation = round(args.validation * len(items))
    validation, items = items[:n_validation], items[n_validation:]
    if not items:
        raise SystemExit(f"--validation {args.validation}: takes all {n_validation} documents: "
                         "nothing to learn")
    print(f"{len(items)} documents to train on, {len(validation)} to validate, {n_rows} rows, "
          f"{sum(len(item.labels.golden) for item in items)} golden chunks", flush=True)
    scorers, ordinals = make_scorers(about, items, args, device)
    before = evaluate(validation, scorers, args, device) if validation else {}
    started = time.time()
    curve, steps, offset = train(items, validation, scorers, args, device)
    seconds = time.time() - started
    write_weights(folder / "scorer.safetensors", scorers, ordinals, args, offset)
    metrics = evaluate(validation, scorers, args, device) if validation else {}
    write_record(folder, {
        "date": time.strftime("%Y-%m-%d"), "model": about["model"], "notes": args.note,
        "documents": {"training": len(items), "validation": len(validation)}, "rows": n_rows,
        "scorers": {"layers": list(scorers), "rank": args.rank, "heads": args.heads,
                    "parameters": sum(p.numel() for s in scorers.values() for p in s.parameters())},
        "settings": {key: value for key, value in vars(args).items()
                     if key not in ("dumps", "output", "note", "device") and value is not None},
        "steps": steps, "seconds": round(seconds, 1), "logit_offset": round(offset, 4),
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "CPU",
        "curve": curve, "before": before, "metrics": metrics})
    print_tables(metrics)


if __name__ == "__main__":
    run(main)
