"""What a scorer is to predict: the chunks that the model's own indexers will want.

A chunk is golden for a token if it is in the golden prefix of `min_layers` layers or more: of the
layer's top_k chunks, the fewest that hold `top_p` of their softmax. A scorer asked at token t is to
find what is golden for any of the tokens t..t+interval-1 and exists at t. The interval ends early
where the document does, or behind `end_token`: what follows an answer cannot be foreseen.
"""

import dataclasses

import torch

from scorer import score

ROWS_AT_ONCE = 256


@dataclasses.dataclass
class Settings:
    top_p: float = 0.6
    min_layers: int = 3
    interval: int = 64
    max_pos: int = 512
    neg_ratio: float = 3.0
    hard: int = 0  # of the highest scores that are wrong, per row
    weigh: str = "votes"  # positives: by most "votes" for a token, or by softmax "mass" in the interval
    trivial: float = 0.8  # golden for more than this share of a document's tokens: half the weight
    end_token: int = -1


def native_logits(document, layer, rows):
    """[rows, chunks] of the model's indexer; -inf where the chunk is not visible."""
    q, weight = document.index(layer, rows)
    logits = score(q, weight, document.keys(layer))
    chunk = torch.arange(logits.shape[1], device=logits.device)
    return logits.masked_fill(chunk >= document.visible(rows)[:, None], -torch.inf)


class Labels:
    """Of one document.

    top[layer]    [rows, k] ids of the native selection, best first
    mass[layer]   [rows, k] their softmax; 0 beyond the visible chunks
    start, golden, votes, weights: golden chunks of row r are golden[start[r]:start[r + 1]]; of each
        the layers that agree, and its mass summed over layers
    """

    def __init__(self, document, settings):
        self.settings = settings
        self.position = document.position
        self.ratio = document.about["ratio"]
        self.n_chunks = document.n_chunks
        self.n_layers = len(document.layers)
        self.top, self.mass = {}, {}
        device = self.position.device
        for layer in document.layers:
            self.top[layer], self.mass[layer] = [], []
        counts, golden, votes, masses = [], [], [], []
        for first in range(0, document.n_rows, ROWS_AT_ONCE):
            rows = torch.arange(first, min(first + ROWS_AT_ONCE, document.n_rows), device=device)
            vote = torch.zeros(len(rows), self.n_chunks, dtype=torch.int32, device=device)
            total = torch.zeros(len(rows), self.n_chunks, device=device)
            for layer in document.layers:
                logits = native_logits(document, layer, rows)
                best = torch.topk(logits, min(document.about["top_k"], self.n_chunks), dim=1)
                # A row without any visible chunk has no softmax.
                mass = torch.softmax(best.values, dim=1).nan_to_num(0.0)
                before = torch.cumsum(mass, dim=1) - mass
                chosen = (mass > 0) & (before < settings.top_p)
                vote.scatter_add_(1, best.indices, chosen.to(torch.int32))
                total.scatter_add_(1, best.indices, mass)
                self.top[layer].append(best.indices.to(torch.int32))
                self.mass[layer].append(mass)
            row, chunk = torch.nonzero(vote >= settings.min_layers, as_tuple=True)
            counts.append(torch.bincount(row, minlength=len(rows)))
            golden.append(chunk)
            votes.append(vote[row, chunk])
            masses.append(total[row, chunk])
        for layer in document.layers:
            self.top[layer] = torch.cat(self.top[layer])
            self.mass[layer] = torch.cat(self.mass[layer])
        self.golden, self.votes, self.masses = map(torch.cat, (golden, votes, masses))
        self.start = torch.cat((torch.zeros(1, dtype=torch.long, device=device),
                                torch.cumsum(torch.cat(counts), 0)))
        often = torch.bincount(self.golden, minlength=self.n_chunks).float()
        self.trivial = often > settings.trivial * document.n_rows
        # The first row behind the next end token, for each row.
        ends = torch.nonzero(document.row_token == settings.end_token)[:, 0]
        ends = torch.cat((ends, torch.full((1,), document.n_rows - 1, device=device)))
        self.stop = ends[torch.searchsorted(ends, torch.arange(document.n_rows, device=device))] + 1

    def window_end(self, rows):
        """The first row behind the interval that begins at each row."""
        end = torch.searchsorted(self.position, self.position[rows] + self.settings.interval)
        return torch.minimum(end, self.stop[rows])

    def visible(self, rows):
        return (self.position[rows] + 1) // self.ratio

    def union(self, rows):
        """Of the tokens of the interval, [rows, chunks], 0 where the chunk is not visible: the most
        votes of a chunk, and the mean over the tokens of its mass."""
        first, last = self.start[rows], self.start[self.window_end(rows)]
        length = last - first
        owner = torch.repeat_interleave(torch.arange(len(rows), device=rows.device), length)
        offset = torch.arange(len(owner), device=rows.device)
        place = offset - torch.repeat_interleave(torch.cumsum(length, 0) - length, length)
        entry = place + first[owner]
        cell = owner * self.n_chunks + self.golden[entry]
        votes = torch.zeros(len(rows) * self.n_chunks, dtype=torch.int32, device=rows.device)
        votes.scatter_reduce_(0, cell, self.votes[entry].to(torch.int32), reduce="amax")
        mass = torch.zeros(len(rows) * self.n_chunks, device=rows.device)
        mass.scatter_add_(0, cell, self.masses[entry])
        n_tokens = self.window_end(rows) - rows
        chunk = torch.arange(self.n_chunks, device=rows.device)
        hidden = chunk >= self.visible(rows)[:, None]
        return (votes.reshape(hidden.shape).masked_fill(hidden, 0),
                mass.reshape(hidden.shape).masked_fill(hidden, 0) / n_tokens[:, None])

    def weight(self, votes, mass):
        """Of positives. By votes: 0.5 for the fewest that count, 2 for those of all layers. By mass:
        in proportion, so that the mean of a row is 1; the order that is learned is then that of the
        expected mass."""
        if self.settings.weigh == "mass":
            mean = mass.sum(1, keepdim=True) / (mass > 0).sum(1, keepdim=True).clamp(min=1)
            return (mass / mean.clamp(min=1e-9)).clamp(max=20)
        least = self.settings.min_layers
        return 0.5 + 1.5 * (votes - least).float() / max(self.n_layers - least, 1)


def pick(eligible, count, order):
    """Of each row, `count[row]` eligible columns of highest `order`: ids [rows, most], is_valid."""
    most = int(count.max()) if len(count) else 0
    ranked = order.masked_fill(~eligible, -torch.inf)
    best = torch.topk(ranked, min(most, ranked.shape[1]), dim=1)
    rank = torch.arange(best.indices.shape[1], device=count.device)
    return best.indices, (rank < count[:, None]) & (best.values > -torch.inf)


def sample(labels, rows, generator, wrong=None):
    """Chunks to score for each row.

    wrong: [rows, chunks] scores, to choose hard negatives by; None: none
    -> ids [rows, n], target and weight [rows, n]; weight 0 where there is nothing
    """
    settings = labels.settings
    votes, mass = labels.union(rows)
    chunk = torch.arange(labels.n_chunks, device=rows.device)
    exists = chunk < labels.visible(rows)[:, None]
    is_golden = votes > 0
    chance = torch.rand(votes.shape, generator=generator, device=rows.device)
    n_positive = is_golden.sum(1).clamp(max=settings.max_pos)
    positive, has_positive = pick(is_golden, n_positive, chance)
    weight = torch.gather(labels.weight(votes, mass), 1, positive)
    weight = torch.where(labels.trivial[positive], weight.clamp(max=0.5), weight)
    parts = [(positive, torch.ones_like(weight), weight * has_positive)]
    eligible = exists & ~is_golden
    pools = [(chance, (n_positive * settings.neg_ratio).long().clamp(min=16))]
    if wrong is not None and settings.hard > 0:
        pools.append((wrong, torch.full_like(n_positive, settings.hard)))
    for order, count in pools:
        negative, has_negative = pick(eligible, count, order)
        parts.append((negative, torch.zeros_like(negative, dtype=weight.dtype),
                      has_negative.to(weight.dtype)))
    return tuple(torch.cat(part, dim=1) for part in zip(*parts))
