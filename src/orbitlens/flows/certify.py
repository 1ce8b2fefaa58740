"""Certificates of a free flow in front of the reader: all its heads, its drift and its start.

Enters: a free softmax `System` and tokens. Leaves: T1 to T5 for that flow (docs/certificates.md),
with the numbers that its start gives them. T1 and T2 are proved for one head, T3 for one or for
value maps v_h I; T4 and T5 speak of the sum of all.
"""

from dataclasses import dataclass, replace

import numpy as np

from orbitlens._types import Tokens
from orbitlens.flows.system import System
from orbitlens.heads.head import Head
from orbitlens.theory.alignment import Alignment
from orbitlens.theory.certificates import Certificate, Hypothesis, certify, rounded_down
from orbitlens.theory.eigenpairs import (
    EPS,
    Eigenpair,
    Growth,
    Matrix,
    Vector,
    certain_eigenpairs,
    exact_product,
    scalar_of,
)
from orbitlens.theory.half_spaces import CLEAR, half_space
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.plain import (
    cloud_certificate,
    pair_certificate,
    speed_bound,
    speed_certificate,
)

TRIED = 8  # eigenvectors of V in which a part of the first token is looked for


@dataclass(frozen=True, kw_only=True)
class Values:
    """The sum of a flow's value maps where it acts, and its tokens there.

    Tokens x as rows obey x' = P x A B with A = [w_v] and B = [w_o] of all heads; s = x A obeys
    s' = P s (B A). The narrower of the two is kept, acting on columns.
    """

    matrix: Matrix
    scale: float  # of what the matrix was summed from; 0 where nothing was rounded
    tokens: Matrix
    drift: Vector
    stretch: float  # |s| <= stretch |x|
    has_kernel: bool
    scalars: tuple[float, ...] | None  # v_h where every V_h is v_h I to the last bit

    @classmethod
    def of(cls, system: System, tokens: Tokens) -> "Values":
        """Read them off a system and its start."""
        h, d, r = system.w_v.shape
        reads = system.w_v.permute(1, 0, 2).reshape(d, h * r).numpy()
        writes = system.w_o.reshape(h * r, d).numpy()
        x = tokens.numpy()
        drift = np.zeros(d) if system.drift is None else system.drift.numpy()
        scale = sum(
            float(np.linalg.norm(a) * np.linalg.norm(b))
            for a, b in zip(system.w_v.numpy(), system.w_o.numpy(), strict=True)
        )
        scalars = value_scalars(system)
        if h * r < d:
            return cls(
                matrix=(writes @ reads).T,
                scale=scale,
                tokens=x @ reads,
                drift=drift @ reads,
                stretch=float(np.linalg.norm(reads, 2)) * (1 + 1e-9),
                has_kernel=True,
                scalars=None,
            )
        exact = exact_product(reads, writes) if h == 1 else None
        return cls(
            matrix=(reads @ writes if exact is None else exact).T,
            scale=scale if exact is None else 0.0,
            tokens=x,
            drift=drift,
            stretch=1.0,
            has_kernel=False,
            scalars=scalars,
        )


def value_scalars(system: System) -> tuple[float, ...] | None:
    """Return v_h where every value map is v_h I to the last bit, else None."""
    products = (
        exact_product(a, b) for a, b in zip(system.w_v.numpy(), system.w_o.numpy(), strict=True)
    )
    scalars = [scalar_of(product) for product in products]
    found = [v for v in scalars if v is not None]
    return tuple(found) if len(found) == len(scalars) else None


def flow_certificates(
    system: System, tokens: Tokens, heads: list[Head], maps: list[HeadMaps]
) -> tuple[Certificate, ...]:
    """Check every theorem on a flow."""
    values = Values.of(system, tokens)
    late = (
        side_certificate(values, one_head=len(heads) == 1),
        first_token_certificate(values, causal=heads[0].causal),
        speed_certificate(heads, sum(speed_bound(m) for m in maps), system.drift),
    )
    if len(heads) > 1:
        return late
    form = Alignment.of(maps[0])
    n = tokens.shape[0]
    return (
        _pairs(pair_certificate(heads[0], form), tokens.numpy()),
        _cloud(
            cloud_certificate(heads[0], maps[0], form, n_tokens=n), tokens.numpy(), values.drift
        ),
        *late,
    )


# --- what the start and the drift add --------------------------------------------------------


def _restricted(certificate: Certificate, *extra: Hypothesis) -> Certificate:
    failed = [f"{h.name}: {h.detail}" for h in extra if not h.holds]
    if not failed:
        return replace(certificate, hypotheses=(*certificate.hypotheses, *extra))
    before = certificate.why if not certificate.holds else "no certificate"
    return replace(
        certificate,
        holds=False,
        why="; ".join([before, *failed]),
        hypotheses=(*certificate.hypotheses, *extra),
        numbers={},
    )


def _pairs(certificate: Certificate, x: Matrix) -> Certificate:
    size = float(np.linalg.norm(x - x.mean(axis=0), axis=1).max())
    radius = certificate.numbers.get("radius", np.inf)
    inside = Hypothesis(
        name="the tokens start within the radius of the statement",
        holds=size <= radius,
        detail=f"one is {size:.3g} from their mean, and A V = W only to {radius:.3g}",
    )
    return _restricted(certificate, inside)


def _cloud(certificate: Certificate, x: Matrix, drift: Vector) -> Certificate:
    still = Hypothesis(name="no drift", holds=not drift.any(), detail="a bias moves every token")
    if certificate.numbers.get("sign", -1.0) < 0:
        return _restricted(certificate, still)
    size, ball = float(np.linalg.norm(x, axis=1).max()), certificate.numbers["within"]
    away = Hypothesis(
        name="not all tokens start at 0",
        holds=size > ball,
        detail="all do, and stay there" if size == 0 else f"all are within {ball:.3g} of it",
    )
    return _restricted(certificate, still, away)


# --- T3 --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Side:
    """A direction w along which all tokens grow: w . x_i >= start exp(rate t)."""

    rate: float
    start: float


def best_side(values: Values, *, one_head: bool) -> Side | None:
    """Return the fastest growth that a half-space gives all tokens, or None."""
    if values.scalars is not None and min(values.scalars) >= 0:
        found = half_space(values.tokens)
        total = sum(values.scalars) * (1 - 1e-12)
        if found is None or total <= 0:
            return None
        return _side(values, total, found[0], 4 * EPS)
    if not one_head:
        return None
    sides = (
        _pair_side(values, p) for p in certain_eigenpairs(values.matrix, values.scale, real=True)
    )
    return next((side for side in sides if side is not None), None)  # by falling rate


def _pair_side(values: Values, pair: Eigenpair) -> Side | None:
    rate = pair.value.real - pair.error
    w = pair.vector.real
    if rate <= 0:
        return None
    sign = 1.0 if (values.tokens @ w)[0] > 0 else -1.0
    return _side(values, rate, sign * w, pair.radius)


def _side(values: Values, rate: float, w: Vector, radius: float) -> Side | None:
    """Return the growth along w: d/dt min u >= rate min u + w . b, for every w within `radius`."""
    lengths = np.linalg.norm(values.tokens, axis=1)
    sides = values.tokens @ w - radius * lengths
    if not bool((sides > CLEAR * lengths).all()):
        return None
    push = float(values.drift @ w) - radius * float(np.linalg.norm(values.drift))
    start = (float(sides.min()) + min(push, 0.0) / rate) * (1 - 1e-9)
    if start <= CLEAR * float(sides.min()):
        return None
    return Side(rate=rate, start=start / (values.stretch * (1 + radius)))


def side_certificate(values: Values, *, one_head: bool) -> Certificate:
    """T3 for this start: every token's length is at least start exp(rate t)."""
    side = best_side(values, one_head=one_head)
    rate = 0.0 if side is None else side.rate
    hypotheses = [
        Hypothesis(
            name="one head, or value maps v_h I with v_h >= 0",
            holds=one_head or (values.scalars is not None and min(values.scalars) >= 0),
            detail="several heads, and no direction that all of them keep",
        ),
        Hypothesis(
            name="all tokens start on one side of an eigenvector of V",
            holds=side is not None,
            detail="they do not, or a drift pushes them to the other",
        ),
    ]
    return certify(
        "T3",
        hypotheses,
        margin=rate,
        conclusion="all tokens start on one side of an eigenvector of V, and diverge at least like "
        f"exp({rounded_down(rate)} t)",
        numbers={} if side is None else {"rate": side.rate, "start": side.start},
    )


# --- T4 --------------------------------------------------------------------------------------


def first_token_certificate(values: Values, *, causal: bool) -> Certificate:
    """T4 for this start: |x_1| >= start exp(rate t) - less, or it converges."""
    growth = Growth.of(values.matrix, values.scale, kernel=values.has_kernel)
    numbers = _leader_growth(values)
    rising = growth.at_least > 0
    hypotheses = [
        Hypothesis(
            name="the mask is causal", holds=causal, detail="the first token sees the others too"
        ),
        Hypothesis(
            name="the abscissa of V is not 0",
            holds=rising or growth.decays,
            detail="it cannot be told from 0: the leader keeps what lies in V's kernel",
        ),
        Hypothesis(
            name="the first token has a part in a growing direction of V",
            holds=not rising or numbers is not None,
            detail="it has none that is certain",
        ),
    ]
    point = "a point" if values.drift.any() else "0"
    fate = f"converges to {point}"
    if numbers is not None:
        fate = f"diverges, at least like exp({rounded_down(numbers['rate'])} t)"
    return certify(
        "T4",
        hypotheses,
        margin=0.0 if growth.abscissa is None else growth.abscissa,
        conclusion=f"the first token {fate}",
        numbers=numbers or {},
    )


def _leader_growth(values: Values) -> dict[str, float] | None:
    """Return what x' = V x + b does to the first token along a growing eigenvector, or None.

    With V^T w = z w, the part w.x + w.b / z grows like exp(z t).
    """
    x, b = values.tokens[0], values.drift
    if values.scalars is not None:
        v = sum(values.scalars)
        part = float(np.linalg.norm(x + b / v)) if v > 0 else 0.0
        size = float(np.linalg.norm(x) + np.linalg.norm(b) / v) if v > 0 else 0.0
        less = float(np.linalg.norm(b)) / v if v > 0 else 0.0
        numbers = {"rate": v * (1 - 1e-12), "start": part * (1 - CLEAR), "less": less}
        return numbers if part > CLEAR * size else None
    for tried, pair in enumerate(certain_eigenpairs(values.matrix, values.scale)):
        rate = pair.value.real - pair.error
        if rate <= 0 or tried == TRIED:
            return None
        z, push = abs(pair.value), float(np.linalg.norm(b))
        size = float(np.linalg.norm(x)) + push / z
        part = float(abs(pair.vector @ x + pair.vector @ b / pair.value))
        part -= 2 * (pair.radius + pair.error / z) * size
        if part > CLEAR * size:
            unit = values.stretch * (1 + pair.radius)
            less = push / (z - pair.error) * (1 + pair.radius) / unit
            return {"rate": rate, "start": part * (1 - CLEAR) / unit, "less": less * (1 + CLEAR)}
    return None
