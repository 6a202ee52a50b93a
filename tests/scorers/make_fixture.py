#!/usr/bin/env python3
"""Writes a parity fixture: a scorer, one query, keys, and the logits that NumPy makes of them.

The layout is little-endian: u32 magic "FMSC", i32 version, i32 n_chunks, n_heads, head_dim, rank,
hidden_dim, rope_dim, i64 position, f32 eps; f32 wq_a, wq_b, q_norm, weights_proj, inverse
frequencies, hidden; u8 keys [n_chunks, head_dim + 4]; f32 logits, f32 scores.

  python3 tests/scorers/make_fixture.py tests/data/scorers/small.fmsc
"""
import struct
import sys

import numpy as np

N, HEADS, D, RANK, HIDDEN, ROPE = 96, 8, 128, 24, 80, 64
POSITION, EPS = 70001, np.float32(1e-6)


def bf16(x):
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def e4m3_table():
    values = []
    for code in range(256):
        exponent, mantissa = code >> 3 & 15, code & 7
        if code & 127 == 127:
            value = float("nan")
        elif exponent == 0:
            value = mantissa / 8 * 2.0**-6
        else:
            value = (1 + mantissa / 8) * 2.0 ** (exponent - 7)
        values.append(-value if code & 128 else value)
    return np.array(values, np.float32)


def frequencies():
    base, factor, context = 160000.0, 16.0, 65536.0
    i = np.arange(ROPE // 2)
    plain = base ** (-2.0 * i / ROPE)

    def corr(turns):
        return ROPE * np.log(context / (2 * np.pi * turns)) / (2 * np.log(base))

    low, high = max(np.floor(corr(32)), 0), min(np.ceil(corr(1)), ROPE // 2 - 1)
    ramp = np.clip((i - low) / (high - low), 0, 1)
    return (plain * (1 - ramp) + plain / factor * ramp).astype(np.float32)


def hadamard(n):
    h = np.array([[1.0]])
    while len(h) < n:
        h = np.block([[h, h], [h, -h]])
    return (h / np.sqrt(n)).astype(np.float32)


def main():
    random = np.random.default_rng(2609)

    def normal(*shape):
        return random.standard_normal(shape).astype(np.float32)

    wq_a = normal(RANK, HIDDEN) / np.float32(np.sqrt(HIDDEN))
    wq_b = normal(HEADS * D, RANK) / np.float32(np.sqrt(RANK))
    q_norm = 1 + normal(RANK) / 4
    weights_proj = normal(HEADS, HIDDEN) / np.float32(np.sqrt(HIDDEN))
    hidden = bf16(normal(HIDDEN))
    raw = normal(N, D)
    scale = (np.abs(raw).max(1) / 448).astype(np.float32)
    table = e4m3_table()
    finite = np.where(np.isnan(table), np.inf, table)
    codes = np.abs((raw / scale[:, None])[:, :, None] - finite).argmin(2).astype(np.uint8)
    keys = table[codes] * scale[:, None]

    a = wq_a @ hidden
    a = a / np.sqrt(np.mean(a * a) + EPS) * q_norm
    q = bf16(wq_b @ a).reshape(HEADS, D)
    f = frequencies()
    angle = np.float32(POSITION) * f
    c, s = np.cos(angle), np.sin(angle)
    u, v = q[:, D - ROPE::2].copy(), q[:, D - ROPE + 1::2].copy()
    q[:, D - ROPE::2], q[:, D - ROPE + 1::2] = bf16(u * c - v * s), bf16(u * s + v * c)
    q = q @ hadamard(D)
    w = weights_proj @ hidden * np.float32(D**-0.5) * np.float32(HEADS**-0.5)
    logits = np.maximum(keys @ q.T, 0) @ w
    scores = 1 / (1 + np.exp(-logits))

    with open(sys.argv[1], "wb") as out:
        out.write(struct.pack("<Ii6iqf", 0x464D5343, 1, N, HEADS, D, RANK, HIDDEN, ROPE, POSITION, EPS))
        for part in (wq_a, wq_b, q_norm, weights_proj, f, hidden):
            out.write(part.astype("<f4").tobytes())
        for row, factor in zip(codes, scale):
            out.write(row.tobytes() + struct.pack("<f", factor))
        out.write(logits.astype("<f4").tobytes() + scores.astype("<f4").tobytes())


if __name__ == "__main__":
    main()
