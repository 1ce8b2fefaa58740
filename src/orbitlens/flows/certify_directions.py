"""Certificates of a flow of directions in front of the reader: N1 to N6, docs/certificates.md.

Enters: a softmax `System` whose tokens are normalised, and its tokens. Leaves: a certificate each;
N1 to N3 are those of `gathering`, N4 to N6 look at scores.
"""

import math

import numpy as np

from orbitlens._types import Tokens
from orbitlens.flows.directions import Directions
from orbitlens.flows.gathering import (
    cone_certificate,
    first_direction_certificate,
    followers_certificate,
    gathering_certificate,
)
from orbitlens.flows.system import System
from orbitlens.heads.head import Head
from orbitlens.theory.certificates import Certificate, Hypothesis, certify, rounded_up
from orbitlens.theory.eigenpairs import exact_product, scalar_of
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.normalised import sharpness_statement
from orbitlens.theory.plain import full_attention, is_zero, plain_scores

EQUIANGULAR = 1e-9  # by which the cosines of a start may differ
PROPORTIONAL = 1e-9  # share of V that k W may miss


def direction_certificates(
    system: System, tokens: Tokens, heads: list[Head], maps: list[HeadMaps]
) -> tuple[Certificate, ...]:
    """Check every theorem on a flow of directions."""
    flow = Directions.of(system, tokens, heads, maps)
    return (
        gathering_certificate(flow),
        cone_certificate(flow),
        first_direction_certificate(flow),
        followers_certificate(flow),
        sharpness_certificate(flow),
        equiangular_certificate(flow),
        energy_certificate(flow),
    )


def sharpness_certificate(flow: Directions) -> Certificate:
    """N4: scores of one query differ by `spread` at most, so attention cannot be sharper."""
    spreads = [flow.spread(h) for h in range(len(flow.heads))]
    return sharpness_statement(spreads, flow.n_tokens)


def equiangular_certificate(flow: Directions) -> Certificate:
    """N5: V_h = v_h I and W_h = b_h I keep tokens at one angle, whose cosine obeys an equation.

        C' = sum_h 2 v_h (1 - C) (1 + (n - 1) C) / (exp(b_h (1 - C)) + n - 1).

    Cosines stay within tolerance exp(growth t) of its solution. The margin is what the cosines of
    the start may still differ by.
    """
    scores = [scalar_of(exact_product(m.left.numpy(), m.right.numpy().T)) for m in flow.maps]
    known = [b for b in scores if b is not None]
    gram = flow.tokens @ flow.tokens.T
    apart = gram[~np.eye(len(gram), dtype=bool)]
    cosine = float(apart.mean()) if len(apart) else 1.0
    off = float(np.abs(apart - cosine).max()) + 1e-15 * len(gram) if len(apart) else 1.0
    hypotheses = [
        full_attention(flow.heads[0]),
        *plain_scores(flow.heads[0]),
        flow.no_drift(),
        Hypothesis(
            name="value maps are v_h I",
            holds=flow.scalars is not None,
            detail="a value map is no multiple of I",
        ),
        Hypothesis(
            name="score maps are b_h I, without biases",
            holds=len(known) == len(scores) and all(is_zero(h.score_shift) for h in flow.heads),
            detail="a score map is no multiple of I, or has a bias",
        ),
        Hypothesis(
            name="tokens stay on the sphere",
            holds=flow.has_unit_speed,
            detail=f"the geometry is {flow.system.geometry.value}",
        ),
        Hypothesis(
            name="all pairs start at one angle",
            holds=off <= EQUIANGULAR,
            detail=f"cosines differ by {off:.1e}" if len(apart) else "there is one token",
        ),
    ]
    values = flow.scalars or ()
    grows = 2.0 * sum(abs(v) * (3 + 4 * abs(b)) for v, b in zip(values, known, strict=False))
    return certify(
        "N5",
        hypotheses,
        margin=EQUIANGULAR - off,
        conclusion=f"all pairs keep one cosine, {cosine:.3f} at first, that solves the equiangular "
        f"equation (to {rounded_up(off)} exp({rounded_up(grows)} t))",
        numbers={"cosine": cosine, "tolerance": off, "growth": grows},
    )


def energy_certificate(flow: Directions) -> Certificate:
    """N6: V = k W, W symmetric: the energy sum_ij exp(score_ij) never falls (k > 0) or never rises.

    What V and k W, W and W^T differ by lets its logarithm move against this by `loss` a unit of
    time at most. The margin is k.
    """
    head, maps = flow.heads[0], flow.maps[0]
    w, v = (maps.left @ maps.right.T).numpy(), (maps.out @ maps.value.T).numpy()
    square = float((w * w).sum())
    k = float((v * w).sum()) / square if square > 0 else 0.0
    twist = float(np.linalg.norm(w - w.T, 2)) / 2
    size = float(np.linalg.norm(w, 2))
    missed = float(np.linalg.norm(v - k * w, 2)) + 1e-15 * len(w) * abs(k) * size
    missed += abs(k) * (twist + math.expm1(min(2 * twist, 700.0)) * size / 2)
    near = missed <= PROPORTIONAL * abs(k) * size and k != 0
    loss = missed**2 / (2 * abs(k)) if near else 0.0  # of maps far from this, missed is 1e300
    hypotheses = [
        Hypothesis(name="one head", holds=len(flow.heads) == 1, detail="several heads"),
        full_attention(head),
        *plain_scores(head),
        flow.no_drift(),
        Hypothesis(
            name="no biases in the scores",
            holds=is_zero(head.score_shift),
            detail="the head has one",
        ),
        Hypothesis(
            name="V = k W with W symmetric",
            holds=near,
            detail="they differ" if k != 0 else "one of them is 0",
        ),
        Hypothesis(
            name="tokens stay on the sphere",
            holds=flow.has_unit_speed,
            detail=f"the geometry is {flow.system.geometry.value}",
        ),
    ]
    verb = "falls" if k > 0 else "rises"
    return certify(
        "N6",
        hypotheses,
        margin=k,
        conclusion=f"the energy sum_ij exp(score_ij) never {verb} "
        f"(its logarithm by less than {rounded_up(loss)} a unit of time)",
        numbers={"loss": loss, "sign": math.copysign(1.0, k)},
    )
