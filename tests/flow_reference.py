"""The flow written out slowly and plainly in NumPy: what every fast path is held to."""

import math

import numpy as np

from orbitlens.simulate.system import Geometry, Mask


def numpy_of(tensor):
    return None if tensor is None else tensor.numpy()


def turned(vector, spec, place):
    """Turn one query or key by its place, halves pairing, plane by plane."""
    out = vector.copy()
    half = spec.d_rotary // 2
    for k in range(half):
        angle = place * spec.base ** (-2.0 * k / spec.d_rotary)
        a, b = vector[k], vector[k + half]
        out[k] = a * math.cos(angle) - b * math.sin(angle)
        out[k + half] = b * math.cos(angle) + a * math.sin(angle)
    return out


def weights(system, h, x, i):
    """Return the attention weights of token i in head h, and the tokens it sees."""
    n = len(x)
    w_q, w_k = numpy_of(system.w_q)[h], numpy_of(system.w_k)[h]
    b_q = 0.0 if system.b_q is None else numpy_of(system.b_q)[h]
    b_k = 0.0 if system.b_k is None else numpy_of(system.b_k)[h]
    query = x[i] @ w_q + b_q
    seen, scores = [], []
    for j in range(n):
        if system.mask is Mask.CAUSAL and j > i:
            continue
        if system.window is not None and abs(i - j) >= system.window:
            continue
        key = x[j] @ w_k + b_k
        q = query
        if system.rotary is not None:
            q, key = turned(query, system.rotary, i), turned(key, system.rotary, j)
        slope = 0.0 if system.alibi_slopes is None else numpy_of(system.alibi_slopes)[h]
        seen.append(j)
        scores.append(system.beta * (q @ key + slope * (j - i)))
    scores = np.array(scores)
    if system.unnormalised:
        return np.exp(scores) / n, seen
    p = np.exp(scores - scores.max())
    return p / p.sum(), seen


def attention(system, x):
    out = np.zeros_like(x)
    for i in range(len(x)):
        for h in range(system.n_heads):
            p, seen = weights(system, h, x, i)
            mixed = sum(
                share * (x[j] @ numpy_of(system.w_v)[h]) for share, j in zip(p, seen, strict=True)
            )
            out[i] += mixed @ numpy_of(system.w_o)[h]
        if system.drift is not None:
            out[i] += numpy_of(system.drift)
    return out


def unit(x):
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def flow(system, x):
    """Return dx/dt."""
    geometry = system.geometry
    seen = x + numpy_of(system.positions) if system.reinjected else x
    out = attention(system, unit(seen) if geometry.normalises_input else seen)
    if geometry in {Geometry.PERI_LN, Geometry.NGPT}:
        out = unit(out)
    if geometry.on_sphere:
        out = out - (x * out).sum(axis=1, keepdims=True) * x
    return out
