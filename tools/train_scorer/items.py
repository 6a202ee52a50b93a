"""Documents with their labels, and which of their rows are asked."""

import torch

from labels import Labels


class Rows:
    """The rows of a document that can be asked: those from which something is left out."""

    def __init__(self, document, focus_token):
        visible = document.visible(torch.arange(document.n_rows))
        useful = visible > document.about["top_k"]
        is_focus = torch.zeros_like(useful)
        if focus_token is not None:
            is_focus = document.row_token == focus_token
        self.focus = torch.nonzero(useful & is_focus)[:, 0]
        self.body = torch.nonzero(useful & ~is_focus)[:, 0]

    def draw(self, n, focus_share, generator):
        n_focus = int(n * focus_share) if len(self.body) else n
        if not len(self.focus):
            n_focus = 0
        parts = []
        for pool, count in ((self.focus, n_focus), (self.body, n - n_focus)):
            if count and len(pool):
                parts.append(pool[torch.randint(len(pool), (count,), generator=generator,
                                                device=pool.device)])
        return torch.cat(parts)


class Item:
    def __init__(self, document, settings, focus_token):
        self.document = document
        self.labels = Labels(document, settings)
        self.rows = Rows(document, focus_token)

    def is_usable(self):
        return len(self.rows.focus) + len(self.rows.body) > 0
