"""Evaluation of scorers on documents, and the record of a training as JSON and Markdown."""

import json

import torch

from failures import whole
from metrics import BUDGETS, Tally, judge, table

AGES_SHOWN = (0, 1, 3, 7, 15, 31, 47, 63)


def add_metric_arguments(parser):
    group = parser.add_argument_group("metrics")
    group.add_argument("--recent", type=whole(0), default=64, help="tokens that are always kept")
    group.add_argument("--sink", type=whole(0), default=16, help="first tokens, likewise")
    group.add_argument("--body-rows", type=whole(0), default=8,
                       help="forecasts per document besides those at focus tokens")


def evaluate(items, scorers, args, device, body_rows=None):
    """{"focus", "body"} reports over the documents."""
    generator = torch.Generator(device=device).manual_seed(1)
    tallies = {name: Tally(items[0].document.layers) for name in ("focus", "body")}
    n_body = args.body_rows if body_rows is None else body_rows
    with torch.no_grad():
        for item in items:
            body = item.rows.body
            if n_body and len(body):
                body = body[torch.linspace(0, len(body) - 1, n_body + 2, device=device).long()[1:-1]]
            else:
                body = body[:0]
            for name, rows in (("focus", item.rows.focus), ("body", body)):
                judge(item.document, item.labels, scorers, rows, tallies[name], generator,
                      args.recent, args.sink)
    return {name: tally.report() for name, tally in tallies.items() if tally.n_forecasts}


def age_table(report):
    """Markdown: the mean over layers at a budget of 10 %."""
    lines = ["| age | " + " | ".join(map(str, AGES_SHOWN)) + " |",
             "|---" * (len(AGES_SHOWN) + 1) + "|"]
    for method in ("oracle", "scorer", "reuse", "recency", "random"):
        layers = report["methods"].get(method, {}).get(f"{BUDGETS[1]:.2f}", {}).values()
        cells = []
        for age in AGES_SHOWN:
            values = [layer["recall_by_age"][age] for layer in layers]
            values = [value for value in values if value is not None]
            cells.append(f"{sum(values) / len(values):.3f}" if values else "-")
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def metric_lines(metrics, documents):
    """Markdown of evaluate()."""
    lines = []
    for name, report in metrics.items():
        lines += [f"## {documents}, forecasts at {name} tokens ({report['forecasts']})", ""]
        for what, text in (("recall", "Share of the chunks that the model's indexers select"),
                           ("mass", "Softmax mass of the selection")):
            lines += [f"{text} that is kept, mean over layers and ages 0..63, by budget:", "",
                      table(report, what), ""]
        lines += ["Recall by age at a budget of 10 %:", "", age_table(report), ""]
    return lines


def print_tables(metrics):
    for name, report in metrics.items():
        print(f"{name}: recall\n{table(report, 'recall')}\nmass\n{table(report, 'mass')}")


def write_record(folder, record):
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n")
    lines = ["# Training record", "", f"Written by `tools/train_scorer/train.py`, {record['date']}.",
             "", "| | |", "|---|---|"]
    for name, value in (("model", record["model"]), ("data", "; ".join(record["notes"]) or "-"),
                        ("documents", record["documents"]), ("rows", record["rows"]),
                        ("scorers", record["scorers"]), ("settings", record["settings"]),
                        ("steps", record["steps"]), ("seconds", record["seconds"]),
                        ("device", record["device"]), ("logit offset", record["logit_offset"])):
        if isinstance(value, dict):
            value = ", ".join(f"{key} {item}" for key, item in value.items())
        lines.append(f"| {name} | {value} |")
    step = max(len(record["curve"]) // 12, 1)
    lines += ["", "Loss (mean of 50 steps): " + ", ".join(
        f"{entry['step']}: {entry['loss']:.4f}" for entry in record["curve"][step - 1::step]), ""]
    lines += metric_lines(record["metrics"], "Validation documents")
    (folder / "training.md").write_text("\n".join(lines).rstrip() + "\n")
