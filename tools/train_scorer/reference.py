"""The scorer and the labels once more, in NumPy doubles and straight from the definitions: what the
tests compare the training code with. Shares no code with it."""

import numpy as np


def yarn_frequencies(base, n_pairs, factor, original_context, beta_fast, beta_slow):
    """Radians per token of each rotated pair."""
    n_rot = 2 * n_pairs
    plain = np.array([base ** (-2 * i / n_rot) for i in range(n_pairs)])
    if factor == 1:
        return plain

    def pair_of(turns):
        return n_rot * np.log(original_context / (2 * np.pi * turns)) / (2 * np.log(base))

    low = max(np.floor(pair_of(beta_fast)), 0)
    high = min(np.ceil(pair_of(beta_slow)), n_rot - 1)
    if high <= low:
        high = low + 0.001
    ramp = np.clip((np.arange(n_pairs) - low) / (high - low), 0, 1)
    return plain * (1 - ramp) + plain / factor * ramp


def hadamard_matrix(d):
    """Sylvester's: H[i][j] = (-1)^(bits that i and j share), orthonormal."""
    return np.array([[(-1.0) ** bin(i & j).count("1") for j in range(d)]
                     for i in range(d)]) / np.sqrt(d)


def scorer_logits(weights, hidden, position, keys, frequency, transformed):
    """One query: weights by name, hidden [d_model], keys [n, d] -> logits [n]."""
    wq_a, wq_b, norm, proj = (np.asarray(weights[name], np.float64) for name in (
        "wq_a.weight", "wq_b.weight", "q_norm_weight", "weights_proj.weight"))
    d = keys.shape[1]
    n_heads = wq_b.shape[0] // d
    a = wq_a @ hidden
    a = a / np.sqrt(np.mean(a * a) + 1e-6) * norm
    q = (wq_b @ a).reshape(n_heads, d)
    first = d - 2 * len(frequency)
    for i, f in enumerate(frequency):
        # The product is an fp32 one by definition: of large positions that is no detail.
        angle = np.float64(np.float32(position) * np.float32(f))
        u, v = q[:, first + 2 * i].copy(), q[:, first + 2 * i + 1].copy()
        q[:, first + 2 * i] = u * np.cos(angle) - v * np.sin(angle)
        q[:, first + 2 * i + 1] = u * np.sin(angle) + v * np.cos(angle)
    if transformed:
        q = q @ hadamard_matrix(d)
    w = (proj @ hidden) / np.sqrt(d) / np.sqrt(n_heads)
    logits = np.zeros(len(keys))
    for h in range(n_heads):
        logits += w[h] * np.maximum(keys @ q[h], 0)
    return logits


def native_logits(q, weight, scale, keys):
    """The model's own of one query: q [heads, d], weight [heads], keys [n, d] -> [n]."""
    return sum(weight[h] * scale * np.maximum(keys @ q[h], 0) for h in range(len(q)))


def golden_prefix(logits, top_k, top_p):
    """The fewest of the top_k best chunks that hold top_p of their softmax, best first."""
    order = sorted(range(len(logits)), key=lambda n: (-logits[n], n))[:top_k]
    mass = np.exp(np.array([logits[n] for n in order]) - logits[order[0]])
    mass /= mass.sum()
    total, prefix = 0.0, []
    for n, share in zip(order, mass):
        if total >= top_p:
            break
        prefix.append(n)
        total += share
    return prefix
