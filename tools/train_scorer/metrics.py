"""How much of what the model selects is in a resident set, by budget, layer and age of the set.

A set is chosen at one token (the forecast) and serves the tokens after it: ages 0..63. The budget is a
share of the chunks that are complete at the forecast: the first and the last are always kept and count,
the rest goes by the order that is judged. A chunk that completes later is kept and does not count.
Orders: `scorer` (maximum over the scorers), and to compare with
  recency  the latest first              random  any
  reuse    the model's own indexers at the forecast, highest share of a layer's softmax first
  oracle   what will be selected in the interval, most mass first: no order can do better by much
"""

import torch

from labels import native_logits
from scorer import score

BUDGETS = (0.05, 0.10, 0.15, 0.25, 0.50)
AGES = 64


def ensemble_logits(scorers, document, rows):
    """[rows, chunks], maximum over scorers; chunks that are not visible have a number too."""
    best = None
    for layer, scorer in scorers.items():
        q, weight = scorer.queries(document.hidden(layer, rows), document.position[rows])
        logits = score(q, weight, document.keys(layer))
        best = logits if best is None else torch.maximum(best, logits)
    return best


def orders(document, labels, scorers, row, generator):
    """The order of each method at one forecast: [visible chunks], higher is better."""
    rows = row[None]
    n = int(labels.visible(rows))
    device = row.device
    reuse = torch.stack([torch.softmax(native_logits(document, layer, rows)[0, :n], 0)
                         for layer in document.layers]).amax(0)
    oracle = torch.zeros(labels.n_chunks, device=device)
    end = int(labels.window_end(rows))
    for layer in document.layers:
        top, mass = labels.top[layer][row:end], labels.mass[layer][row:end]
        oracle.scatter_add_(0, top.long().flatten(), mass.flatten())
    out = {"recency": torch.arange(n, device=device).float(),
           "random": torch.rand(n, generator=generator, device=device),
           "reuse": reuse, "oracle": oracle[:n]}
    if scorers:
        out["scorer"] = ensemble_logits(scorers, document, rows)[0, :n]
    return out


class Tally:
    """Sums over the forecasts of one group: by method, budget and layer, per age."""

    def __init__(self, layers):
        self.layers, self.sums, self.count, self.n_forecasts = layers, {}, None, 0

    def add(self, method, age, recall, mass):
        """age [tokens]; recall, mass [budgets, layers, tokens]"""
        values = torch.stack((recall, mass)).double()
        if method not in self.sums:
            self.sums[method] = torch.zeros((*values.shape[:3], AGES), dtype=torch.float64,
                                            device=values.device)
        self.sums[method].index_add_(3, age, values)

    def count_ages(self, age):
        if self.count is None:
            self.count = torch.zeros(AGES, dtype=torch.float64, device=age.device)
        self.count.index_add_(0, age, torch.ones_like(age, dtype=torch.float64))
        self.n_forecasts += 1

    def report(self):
        out = {"forecasts": self.n_forecasts, "methods": {}}
        count = self.count.tolist()
        for method, sums in self.sums.items():
            recall, mass = sums.tolist()
            out["methods"][method] = {
                f"{budget:.2f}": {str(layer): {
                    "recall": sum(recall[b][l]) / sum(count), "mass": sum(mass[b][l]) / sum(count),
                    "recall_by_age": by_age(recall[b][l], count),
                    "mass_by_age": by_age(mass[b][l], count)}
                    for l, layer in enumerate(self.layers)}
                for b, budget in enumerate(BUDGETS)}
        return out


def by_age(sums, count):
    return [round(value / n, 4) if n else None for value, n in zip(sums, count)]


def judge(document, labels, scorers, rows, tally, generator, recent, sink):
    """Adds the forecasts at `rows`; recent and sink in tokens."""
    ratio = labels.ratio
    for row in rows:
        n = int(labels.visible(row[None]))
        end = int(labels.window_end(row[None]))
        age = labels.position[row:end] - labels.position[row]
        forced = torch.zeros(n, dtype=torch.bool, device=row.device)
        forced[:-(-sink // ratio)] = True
        forced[max(n - -(-recent // ratio), 0):] = True
        n_forced = int(forced.sum())
        top = torch.stack([labels.top[layer][row:end] for layer in document.layers]).long()
        mass = torch.stack([labels.mass[layer][row:end] for layer in document.layers])
        real = mass > 0
        n_selected = real.sum(-1).clamp(min=1)
        tally.count_ages(age)
        for method, order in orders(document, labels, scorers, row, generator).items():
            best_first = torch.argsort(order.masked_fill(forced, -torch.inf), descending=True)
            kept = torch.ones(len(BUDGETS), labels.n_chunks, dtype=torch.bool, device=row.device)
            kept[:, :n] = forced
            for b, budget in enumerate(BUDGETS):
                kept[b, best_first[:max(int(budget * n) - n_forced, 0)]] = True
            hit = kept[:, top] & real  # [budgets, layers, tokens, k]
            tally.add(method, age, hit.sum(-1) / n_selected, (hit * mass).sum(-1))


def mean_of(report, method, budget, what):
    """Over layers."""
    layers = report["methods"][method][f"{budget:.2f}"]
    return sum(layer[what] for layer in layers.values()) / len(layers)


def table(report, what, scorers=True):
    """Markdown: methods by budgets, then the scorer's layers."""
    head = "| | " + " | ".join(f"{budget:.0%}" for budget in BUDGETS) + " |"
    lines = [head, "|---" * (len(BUDGETS) + 1) + "|"]
    for method in ("oracle", "scorer", "reuse", "recency", "random"):
        if method not in report["methods"]:
            continue
        values = " | ".join(f"{mean_of(report, method, b, what):.3f}" for b in BUDGETS)
        lines.append(f"| {method} | {values} |")
    if scorers and "scorer" in report["methods"]:
        for layer in report["methods"]["scorer"][f"{BUDGETS[0]:.2f}"]:
            values = " | ".join(f"{report['methods']['scorer'][f'{b:.2f}'][layer][what]:.3f}"
                                for b in BUDGETS)
            lines.append(f"| scorer, layer {layer} | {values} |")
    return "\n".join(lines)
