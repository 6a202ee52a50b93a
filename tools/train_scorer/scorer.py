"""The scorer, as training computes it: fp32, PyTorch. reference.py is the same in NumPy doubles.

Deployment differs by rounding alone: it holds queries in bf16 before and after the rope.
"""

import math

import torch

EPS = 1e-6  # of the norm of the query latent: part of the scorer's definition

PARTS = ("wq_a.weight", "wq_b.weight", "q_norm_weight", "weights_proj.weight")


def hadamard(x):
    """Orthonormal Walsh-Hadamard transform of the last dim, Sylvester order; its size a power of 2."""
    d = x.shape[-1]
    shape = x.shape
    stride = 1
    while stride < d:
        x = x.reshape(*shape[:-1], d // (2 * stride), 2, stride)
        x = torch.stack((x[..., 0, :] + x[..., 1, :], x[..., 0, :] - x[..., 1, :]), dim=-2)
        stride *= 2
    return x.reshape(shape) / math.sqrt(d)


def rotate(x, position, frequency):
    """Rope on adjacent pairs of the last 2 * len(frequency) dims of x [rows, heads, d].

    The angle is an fp32 product of fp32 numbers, as the scorers of the original were trained with.
    """
    n_rot = 2 * frequency.shape[0]
    angle = position.to(torch.float32)[:, None] * frequency.to(torch.float32)
    cos, sin = torch.cos(angle)[:, None, :], torch.sin(angle)[:, None, :]
    still, turning = x[..., :-n_rot], x[..., -n_rot:]
    u, v = turning[..., 0::2], turning[..., 1::2]
    turned = torch.stack((u * cos - v * sin, u * sin + v * cos), dim=-1)
    return torch.cat((still, turned.reshape(turning.shape)), dim=-1)


class Scorer(torch.nn.Module):
    """One scorer: of one layer's hidden vectors and index keys.

    about: a dump's description (d_model, d, rope, transformed).
    """

    def __init__(self, about, rank, n_heads):
        super().__init__()
        self.d, self.n_heads = about["d"], n_heads
        self.transformed = about["transformed"]
        d_model = about["d_model"]
        self.wq_a = torch.nn.Linear(d_model, rank, bias=False)
        self.wq_b = torch.nn.Linear(rank, n_heads * self.d, bias=False)
        self.q_norm_weight = torch.nn.Parameter(torch.ones(rank))
        self.weights_proj = torch.nn.Linear(d_model, n_heads, bias=False)
        frequency = torch.tensor(about["rope"]["frequency"], dtype=torch.float64)
        self.register_buffer("frequency", frequency, persistent=False)

    def queries(self, hidden, position):
        """hidden [rows, d_model], position [rows] -> q [rows, heads, d], weight [rows, heads]."""
        a = self.wq_a(hidden)
        a = a * torch.rsqrt(a.square().mean(-1, keepdim=True) + EPS) * self.q_norm_weight
        q = self.wq_b(a).reshape(-1, self.n_heads, self.d)
        q = rotate(q, position, self.frequency)
        if self.transformed:
            q = hadamard(q)
        weight = self.weights_proj(hidden) * (self.d ** -0.5 * self.n_heads ** -0.5)
        return q, weight


def score(q, weight, keys):
    """Logits of every row for its own chunks or for all: keys [rows, n, d] or [n, d] -> [rows, n]."""
    if keys.dim() == 2:
        products = torch.matmul(q, keys.T)
    else:
        products = torch.bmm(q, keys.transpose(1, 2))
    return torch.einsum("rh,rhn->rn", weight, torch.relu(products))
