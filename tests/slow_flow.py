"""The flow of tokens written from its definition, slowly: what the simulator is held to.

NumPy and loops over heads and tokens; nothing is shared with the code under test but the numbers of
a `System`. Rotations are explicit 2 x 2 matrices, masks a question asked of every pair (i, j).
"""

import math

import numpy as np
import torch
from scipy.integrate import solve_ivp

from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.system import Geometry, Mask, System

ENCODINGS = ("none", "absolute", "reinjected", "rotary", "rotary-partial", "alibi")
MASKS = ("full", "causal", "window", "causal-window")
GEOMETRIES = (
    Geometry.FREE,
    Geometry.SPHERE,
    Geometry.PRE_LN,
    Geometry.PERI_LN,
    Geometry.NGPT,
)


# --- the reference ---------------------------------------------------------------------------


def slow_rotation(spec, place):
    """Return the matrix that turns a (column) query or key of the token at `place`."""
    matrix = np.eye(spec.d_head)
    half = spec.d_rotary // 2
    for k in range(half):
        angle = place * spec.base ** (-2 * k / spec.d_rotary)
        a, b = (k, k + half) if spec.pairing is Pairing.HALVES else (2 * k, 2 * k + 1)
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        matrix[np.ix_([a, b], [a, b])] = turn
    return matrix


def sees(system, i, j):
    """Say whether token i sees token j."""
    if system.mask is Mask.CAUSAL and j > i:
        return False
    return system.window is None or abs(i - j) < system.window


def slow_scores(system, h, x):
    """Return the scores of one head, minus infinity where a token is not seen."""
    n = len(x)
    w_q, w_k = system.w_q[h].numpy(), system.w_k[h].numpy()
    b_q = np.zeros(system.d_head) if system.b_q is None else system.b_q[h].numpy()
    b_k = np.zeros(system.d_head) if system.b_k is None else system.b_k[h].numpy()
    queries = [w_q.T @ x[i] + b_q for i in range(n)]
    keys = [w_k.T @ x[j] + b_k for j in range(n)]
    if system.rotary is not None:
        turns = [slow_rotation(system.rotary, i) for i in range(n)]
        queries = [turn @ q for turn, q in zip(turns, queries, strict=True)]
        keys = [turn @ k for turn, k in zip(turns, keys, strict=True)]
    slope = 0.0 if system.alibi_slopes is None else float(system.alibi_slopes[h])
    scores = np.full((n, n), -np.inf)
    for i in range(n):
        for j in range(n):
            if sees(system, i, j):
                scores[i, j] = system.beta * (queries[i] @ keys[j] + slope * -abs(i - j))
    return scores


def slow_attention(system, x):
    """Return A(x) of every token, one row each."""
    n = len(x)
    seen = x + system.positions.numpy() if system.reinjected else x
    if system.geometry in {Geometry.PRE_LN, Geometry.PERI_LN}:
        seen = np.array([row / math.sqrt(row @ row) for row in seen])
    out = np.zeros_like(x)
    for h in range(system.n_heads):
        value = (system.w_v[h].numpy() @ system.w_o[h].numpy()).T  # V, acting on columns
        scores = slow_scores(system, h, seen)
        for i in range(n):
            if system.unnormalised:
                weights = np.exp(scores[i]) / n
            else:
                weights = np.exp(scores[i] - scores[i].max())
                weights = weights / weights.sum()
            out[i] += value @ sum(weights[j] * seen[j] for j in range(n))
    return out if system.drift is None else out + system.drift.numpy()


def slow_field(system, x):
    """Return dx/dt in the system's own geometry."""
    out = slow_attention(system, x)
    if system.geometry in {Geometry.PERI_LN, Geometry.NGPT}:
        out = np.array([row / math.sqrt(row @ row) for row in out])
    if system.geometry in {Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT}:
        out = np.array([a - (a @ row) * row for row, a in zip(x, out, strict=True)])
    return out


def slow_start(system, tokens):
    """Return where tokens start: with positions added, on the sphere where they live there."""
    x = tokens.numpy()
    if system.positions is not None and not system.reinjected:
        x = x + system.positions.numpy()
    if system.geometry in {Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT}:
        x = np.array([row / math.sqrt(row @ row) for row in x])
    return x


def slow_flow(system, tokens, times, *, rtol=1e-12):
    """Return the tokens at `times` by SciPy's DOP853 on the slow field."""
    x = slow_start(system, tokens)
    shape = x.shape
    solved = solve_ivp(
        lambda t, y: slow_field(system, y.reshape(shape)).ravel(),
        (0.0, float(times[-1])),
        x.ravel(),
        "DOP853",
        np.asarray(times),
        rtol=rtol,
        atol=rtol,
    )
    assert solved.success
    return solved.y.T.reshape(-1, *shape)


# --- systems of every setting ----------------------------------------------------------------


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(source, *shape):
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def random_system(  # noqa: PLR0913 - the settings of a system
    seed=0, *, heads=1, d=4, r=4, n=5, mask="full", encoding="none", biased=False, **settings
):
    """Return a random system of mild speed in one of the settings, and tokens for it."""
    source = seeded(seed)
    size = 0.7 / math.sqrt(heads)
    fields = {
        "w_q": normal(source, heads, d, r) / math.sqrt(d),
        "w_k": normal(source, heads, d, r) / math.sqrt(d),
        "w_v": size * normal(source, heads, d, r) / math.sqrt(d),
        "w_o": normal(source, heads, r, d) / math.sqrt(r),
        "mask": Mask.CAUSAL if mask.startswith("causal") else Mask.FULL,
        "window": 3 if mask.endswith("window") else None,
    }
    tokens = normal(source, n, d)
    points = 0.5 * normal(source, n, d)
    if biased:
        fields |= {
            "b_q": 0.5 * normal(source, heads, r),
            "b_k": 0.5 * normal(source, heads, r),
            "drift": 0.3 * normal(source, d),
        }
    fields |= _encoding(encoding, r, heads, points)
    return System(**(fields | settings)), tokens


def _encoding(name, r, heads, points):
    if name in {"absolute", "reinjected"}:
        return {"positions": points, "reinjected": name == "reinjected"}
    if name == "rotary":
        return {"rotary": RotarySpec(base=20.0, d_rotary=r, d_head=r, pairing=Pairing.HALVES)}
    if name == "rotary-partial":
        spec = RotarySpec(base=20.0, d_rotary=r // 2, d_head=r, pairing=Pairing.NEIGHBOURS)
        return {"rotary": spec}
    if name == "alibi":
        return {"alibi_slopes": torch.linspace(0.5, 0.25, heads, dtype=torch.float64)}
    return {}
