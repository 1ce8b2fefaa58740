"""Systems to try certificates on: drawn at random, near hypotheses, and on their edges.

Enters: a seed. Leaves: a `Recipe`: everything about a system that is a choice, and a function of
plain normal numbers for all that is continuous, so that a search can move them. Each family lies
inside the hypotheses of some theorems, or just outside.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from orbitlens._types import Tokens
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.system import Geometry, Mask, System

Array = NDArray[np.float64]
Random = np.random.Generator
N_NUMBERS = 420  # normal numbers that a system is made of, at most
GEOMETRIES = (Geometry.FREE,) * 5 + (Geometry.SPHERE,) * 4 + tuple(Geometry)[2:]
ENCODINGS = ("none", "none", "absolute", "rotary", "alibi")
MASKS = ("full", "full", "causal", "causal", "window", "causal window")
STARTS = ("normal", "one side", "one side", "one side", "cluster", "antipodal", "axis", "zero")
DRIFTS = ("none", "none", "random", "with the tokens")
SIZES = (1e-3, 1.0, 1.0, 1.0, 1.0, 30.0, 1e4)


class Numbers:
    """A row of normal numbers, handed out one after another."""

    def __init__(self, theta: Array) -> None:
        """Start at the first."""
        self._theta, self._at = theta, 0

    def __call__(self, *shape: int) -> Array:
        """Return the next ones, in a shape."""
        size = int(np.prod(shape))
        taken = self._theta[self._at : self._at + size]
        self._at += size
        return taken.reshape(shape)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a system is, but for its numbers."""

    family: str
    n_tokens: int
    d_model: int
    n_heads: int
    d_head: int
    mask: str
    encoding: str
    geometry: Geometry
    biased: bool
    drift: str
    start: str
    beta: float
    size: float  # of the tokens of a free flow
    edge: int  # which oddity, in the family of edges
    sign: float

    def build(self, theta: Array) -> tuple[System, Tokens]:
        """Return the system and its tokens at some numbers."""
        draw = Numbers(theta)
        w_q, w_k, w_v, w_o = FAMILIES[self.family](self, draw)
        tokens = self.size * self._tokens(draw, np.einsum("hdr,hre->ed", w_v, w_o))
        biases = draw(2, self.n_heads, w_q.shape[2]) if self.biased else None
        return System(
            w_q=_tensor(w_q),
            w_k=_tensor(w_k),
            w_v=_tensor(w_v),
            w_o=_tensor(w_o),
            b_q=None if biases is None else _tensor(0.5 * biases[0]),
            b_k=None if biases is None else _tensor(0.5 * biases[1]),
            drift=self._drift(draw, tokens),
            beta=self.beta,
            mask=Mask.CAUSAL if self.mask.startswith("causal") else Mask.FULL,
            window=2 if "window" in self.mask else None,
            geometry=self.geometry,
            rotary=self._rotary(w_q.shape[2]),
            alibi_slopes=_tensor(np.abs(draw(self.n_heads))) if self.encoding == "alibi" else None,
            positions=_tensor(0.3 * draw(self.n_tokens, self.d_model))
            if self.encoding == "absolute"
            else None,
        ), _tensor(tokens)

    def _rotary(self, width: int) -> RotarySpec | None:
        if self.encoding != "rotary" or width < 2:
            return None
        pairing = Pairing.HALVES if self.edge % 2 else Pairing.NEIGHBOURS
        return RotarySpec(base=20.0, d_rotary=width // 2 * 2, d_head=width, pairing=pairing)

    def _tokens(self, draw: Numbers, value: Array) -> Array:
        n, d = self.n_tokens, self.d_model
        x = draw(n, d)
        if self.family == "equiangular" and n <= d + 1:
            return equiangular(n, d, np.tanh(draw(1)[0]))
        if self.start == "one side":  # of an eigenvector of V^T, where one is real
            values, vectors = np.linalg.eig(value.T)
            k = int(np.argmax(np.where(np.abs(values.imag) < 1e-12, values.real, -np.inf)))
            w = vectors[:, k].real
            w = w / max(float(np.linalg.norm(w)), 1e-12)
            along = 0.02 + np.abs(x @ w)
            return np.asarray(x + np.outer(along - x @ w, w))
        if self.start == "cluster":
            return np.asarray(x[:1] + 0.3 * (x - x[:1]))
        if self.start == "antipodal":
            return np.asarray(np.where(np.arange(n)[:, None] % 2, -x[:1], x[:1]) + 1e-3 * x)
        if self.start == "axis":  # the first token keeps to few coordinates: a stable subspace
            x = x.copy()
            x[0, : (d + 1) // 2] = 0.0
            return x
        zero = self.start == "zero" and self.geometry is Geometry.FREE
        return 0 * x if zero else x

    def _drift(self, draw: Numbers, tokens: Array) -> torch.Tensor | None:
        if self.drift == "none":
            return None
        b = draw(self.d_model)
        if self.drift == "with the tokens":
            b = tokens.mean(axis=0) + 0.2 * b
        return _tensor(b)


def _tensor(array: Array) -> torch.Tensor:
    return torch.from_numpy(np.array(array, dtype=np.float64))


def equiangular(n: int, d: int, cosine: float) -> Array:
    """Return n <= d + 1 unit tokens with one cosine between all pairs: the lowest for d + 1."""
    lowest = -1 / (n - 1) if n > 1 else 0.0
    cosine = lowest + (1 - lowest) * (1 + cosine) / 2 if n <= d else lowest
    gram = (1 - cosine) * np.eye(n) + cosine * np.ones((n, n))
    values, vectors = np.linalg.eigh(gram)
    rows = vectors * np.sqrt(np.maximum(values, 0.0))
    rows = rows[:, -d:] if n > d else np.pad(rows, ((0, 0), (0, d - n)))
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


# --- families: queries, keys, values, outputs -------------------------------------------------

Factors = tuple[Array, Array, Array, Array]


def _of_maps(w: Array, v: Array) -> Factors:
    """Return factors of whole maps W and V (acting on columns), heads in front."""
    eye = np.broadcast_to(np.eye(w.shape[-1]), w.shape)
    return w, eye, eye, v.swapaxes(1, 2)


def _definite(draw: Numbers, d: int) -> Array:
    m = draw(d, d)
    return np.asarray(m @ m.T / d + 0.2 * np.eye(d))


def _random(recipe: Recipe, draw: Numbers) -> Factors:
    h, d, r = recipe.n_heads, recipe.d_model, recipe.d_head
    w_q, w_k, w_v = draw(h, d, r), draw(h, d, r), draw(h, d, r)
    return 0.7 * w_q, 0.7 * w_k, 0.7 * w_v, 0.7 * draw(h, r, d)


def _aligned(recipe: Recipe, draw: Numbers) -> Factors:
    """A V = W with A definite, W > 0; W symmetric under a mask."""
    d = recipe.d_model
    a, w, m = recipe.sign * _definite(draw, d), _definite(draw, d), draw(d, d)
    if recipe.mask == "full":
        w = w + (m - m.T) / 2
    return _of_maps(w[None], np.asarray(np.linalg.solve(a, w), dtype=np.float64)[None])


def _narrow(recipe: Recipe, draw: Numbers) -> Factors:
    """A V = W of low rank: keys read what values read."""
    d, r = recipe.d_model, max(1, recipe.d_model - 1)
    a, out, value = recipe.sign * _definite(draw, d), draw(d, r), draw(d, r)
    return (a @ out)[None], value[None], value[None], out.T[None]


def _leaky(recipe: Recipe, draw: Numbers) -> Factors:
    """As narrow, but keys read a little of what values do not: A V is W only almost."""
    w_q, w_k, w_v, w_o = _narrow(recipe, draw)
    share = 10.0 ** (-5.0 - 3.0 * abs(draw(1)[0]))
    return w_q, w_k + share * draw(*w_k.shape), w_v, w_o


def _cancelling(recipe: Recipe, draw: Numbers) -> Factors:
    """Heads whose value maps sum to almost nothing."""
    h, d = recipe.n_heads, recipe.d_model
    v = draw(h, d, d)
    share = 10.0 ** (-2.0 - 5.0 * abs(draw(1)[0]))
    v[-1] = -v[:-1].sum(axis=0) + share * draw(d, d)
    return _of_maps(draw(h, d, d), v)


def _scalar(recipe: Recipe, draw: Numbers) -> Factors:
    """V_h = v_h I, one of them negative at times."""
    h, d = recipe.n_heads, recipe.d_model
    v = np.abs(draw(h)) + 0.1
    v[0] *= -1.0 if recipe.edge == 0 else 1.0
    return _of_maps(draw(h, d, d), v[:, None, None] * np.eye(d))


def _dominant(recipe: Recipe, draw: Numbers) -> Factors:
    """One head whose value map has a real eigenvalue ahead of the others."""
    d = recipe.d_model
    v = 0.4 * draw(d, d) + 1.5 * np.outer(draw(d), draw(d)) / d + 0.8 * np.eye(d)
    return _of_maps(draw(1, d, d), v[None])


def _gradient(recipe: Recipe, draw: Numbers) -> Factors:
    """V = k W, W symmetric."""
    m = draw(recipe.d_model, recipe.d_model)
    w = (m + m.T) / 2
    return _of_maps(w[None], recipe.sign * (0.2 + np.abs(draw(1))) * w[None])


def _equiangular(recipe: Recipe, draw: Numbers) -> Factors:
    """V_h = v_h I and W_h = b_h I, of either sign."""
    h, eye = recipe.n_heads, np.eye(recipe.d_model)
    return _of_maps(draw(h)[:, None, None] * eye, draw(h)[:, None, None] * eye)


def _shrinking(recipe: Recipe, draw: Numbers) -> Factors:
    """Heads whose value maps sum to a stable one."""
    h, d = recipe.n_heads, recipe.d_model
    v = 0.5 * draw(h, d, d) - 1.3 * np.eye(d)
    return _of_maps(draw(h, d, d), v)


def _edge(recipe: Recipe, draw: Numbers) -> Factors:
    """Systems on the edge of a hypothesis, by the number of the edge."""
    d = recipe.d_model
    w, m, eye = _definite(draw, d), draw(d, d), np.eye(d)
    q = np.linalg.qr(m)[0]
    tiny = 10.0 ** (-6.0 - 2.0 * abs(draw(1)[0]))
    jordan = np.diag(np.ones(d - 1), 1)
    values = (
        q @ jordan @ q.T,  # nilpotent: its eigenvalues are rounding
        q @ (jordan + 0.5 * eye) @ q.T,  # a Jordan block that grows
        eye + tiny * m,  # almost a multiple of I
        -w + tiny * (m - m.T),  # almost anti-aligned with itself
        q @ np.diag([0.0] + [-1.0] * (d - 1)) @ q.T,  # singular
        q @ np.diag([1.0, 1.0 + tiny] + [0.2] * (d - 2)) @ q.T,  # two that almost agree
        -eye + 3 * np.outer(q[0], q[1]),  # far from normal
        np.diag([1.0] + [-1.0] * (d - 1)),  # the first token of "axis" lies in what is stable
    )
    v = recipe.sign * values[recipe.edge % len(values)]
    return _of_maps((w if recipe.edge % 2 else w + tiny * (m - m.T))[None], v[None])


FAMILIES: dict[str, Callable[[Recipe, Numbers], Factors]] = {
    "random": _random,
    "aligned": _aligned,
    "narrow": _narrow,
    "leaky": _leaky,
    "cancelling": _cancelling,
    "scalar": _scalar,
    "dominant": _dominant,
    "gradient": _gradient,
    "equiangular": _equiangular,
    "shrinking": _shrinking,
    "edge": _edge,
}
SINGLE = {"aligned", "narrow", "leaky", "dominant", "gradient", "edge"}
SEVERAL = {"cancelling"}
OFTEN = {"aligned", "dominant"}  # whose theorems ask for most
SIDED = {"dominant", "scalar"}  # whose theorems ask for tokens on one side
# Where a family lies inside a theorem only in the plain setting, most of it is drawn there.
HOMES: dict[str, tuple[Geometry, str]] = {
    "aligned": (Geometry.FREE, "full"),
    "narrow": (Geometry.FREE, "full"),
    "leaky": (Geometry.FREE, "full"),
    "scalar": (Geometry.SPHERE, "causal"),
    "dominant": (Geometry.SPHERE, "causal"),
    "gradient": (Geometry.SPHERE, "full"),
    "equiangular": (Geometry.SPHERE, "full"),
}


def draw_recipe(random: Random, shape: tuple[int, int, int]) -> Recipe:
    """Draw everything about a system of (tokens, width, heads) that is a choice."""
    n, d, h = shape
    names = [name for name in FAMILIES if name not in (SEVERAL if h == 1 else SINGLE)]
    family = str(random.choice([*names, *(name for name in names if name in OFTEN)]))
    at_home = family in HOMES and random.random() < (0.4 if family in SIDED else 0.7)
    geometry, mask = HOMES.get(family, (Geometry.FREE, "full"))
    if not at_home:
        geometry = GEOMETRIES[random.integers(len(GEOMETRIES))]
        mask = str(random.choice(MASKS))
    return Recipe(
        family=family,
        n_tokens=n,
        d_model=d,
        n_heads=h,
        d_head=int(random.integers(1, d + 2)),
        mask="causal" if at_home and family == "aligned" and random.random() < 0.3 else mask,
        encoding="none" if at_home else str(random.choice(ENCODINGS)),
        geometry=geometry,
        biased=not at_home and random.random() < 0.3,
        drift="none" if at_home else str(random.choice(DRIFTS)),
        start="one side" if at_home and family in SIDED else str(random.choice(STARTS)),
        beta=float(random.choice([0.3, 1.0, 2.0])),
        size=1.0 if geometry is not Geometry.FREE else float(random.choice(SIZES)),
        edge=int(random.integers(0, 8)),
        sign=float(random.choice([-1.0, 1.0])),
    )
