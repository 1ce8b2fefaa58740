"""Certificates of the flow in front of the reader: all its heads, its drift and its start.

Enters: a free softmax `System` and tokens. Leaves: T1 to T5 for that flow (theory section 2). T1 to
T3 are proved for one head; with several, only T4 and T5 speak, of the sum of the value maps.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows.system import System
from orbitlens.heads.head import Head
from orbitlens.theory.certificates import (
    EQUALITY,
    Certificate,
    Hypothesis,
    head_certificates,
    layer_certificates,
    restricted,
)
from orbitlens.theory.maps import HeadMaps

ROUNDING = 1e-9  # share of what it is made of, below which a component of the start may be a zero


def flow_certificates(
    system: System, tokens: Tokens, heads: list[Head], maps: list[HeadMaps]
) -> tuple[Certificate, ...]:
    """Check every theorem on a flow."""
    whole = (system.w_v @ system.w_o).sum(dim=0)  # acts on rows: V transposed
    spectrum = torch.linalg.eigvals(whole)
    leader, speed = layer_certificates(
        heads,
        speed_limit=sum(m.speed_limit for m in maps),
        abscissa=spectrum.real.max().item(),
        radius=spectrum.abs().max().item(),
    )
    late = (
        _leader(leader, system, tokens, whole),
        restricted(speed, _no_drift(system)),
    )
    if len(heads) > 1:
        return late
    pairs, cloud, half_space, *_ = head_certificates(heads[0], maps[0])
    return (
        pairs,
        restricted(cloud, _no_drift(system), _some_size(tokens)),
        restricted(half_space, _one_side(maps[0], tokens, system.drift)),
        *late,
    )


def _no_drift(system: System) -> Hypothesis:
    still = system.drift is None or not bool(system.drift.any())
    return Hypothesis(name="no drift", holds=still, detail="a bias moves every token")


def _some_size(tokens: Tokens) -> Hypothesis:
    return Hypothesis(
        name="not all tokens start at 0", holds=bool(tokens.any()), detail="all do, and stay there"
    )


def _one_side(maps: HeadMaps, tokens: Tokens, drift: Tensor | None) -> Hypothesis:
    return Hypothesis(
        name="all tokens start on one side of an eigenvector of V",
        holds=half_space_rate(maps, tokens, drift) is not None,
        detail="they do not, or a drift pushes them to the other",
    )


def _leader(
    certificate: Certificate, system: System, tokens: Tokens, whole: Float[Tensor, "d d"]
) -> Certificate:
    """Restrict T4 to the start at hand.

    Where V has growing directions, the leader must have a part in one; where it has none, a drift
    moves the point that it converges to.
    """
    if certificate.margin <= 0:
        return restricted(certificate, _no_drift(system))
    moves = Hypothesis(
        name="the first token has a part in a growing direction of V",
        holds=_grows(whole, tokens[0], system.drift),
        detail="it has none",
    )
    return restricted(certificate, moves)


def _grows(
    whole: Float[Tensor, "d d"], leader: Float[Tensor, " d"], drift: Float[Tensor, " d"] | None
) -> bool:
    """Say whether x' = V x + b leaves every bounded region from `leader`.

    With V^T w = z w, the part w.x + w.b / z grows like exp(z t).
    """
    values, vectors = torch.linalg.eig(whole)  # columns w with V^T w = z w
    b = torch.zeros_like(leader) if drift is None else drift
    for z, w in zip(values, vectors.T, strict=True):
        if z.real.item() <= EQUALITY * values.abs().max().item():
            continue
        part = (w @ leader.to(w) + w @ b.to(w) / z).abs().item()
        size = leader.norm().item() + b.norm().item() / z.abs().item()
        if part > ROUNDING * size * w.abs().norm().item():
            return True
    return False


def half_space_rate(
    maps: HeadMaps, tokens: Tokens, drift: torch.Tensor | None = None
) -> float | None:
    """Return the largest positive eigenvalue of V whose hyperplane has all tokens on one side.

    T3 needs V^T w = lambda w with w . x_i > 0 for every token (and w . b >= 0): w = U a, where a is
    an eigenvector of O^T U.
    """
    values, vectors = torch.linalg.eig(maps.value_out.T)
    rounding = EQUALITY * maps.speed_limit  # below, an eigenvalue may be a zero
    best: float | None = None
    for k in range(values.numel()):
        rate = values[k].real.item()
        if values[k].imag != 0 or rate <= (best or rounding):
            continue
        w = maps.value @ vectors[:, k].real
        sides = tokens @ w
        sign = 1.0 if sides[0] > 0 else -1.0
        pushes = drift is None or sign * float(drift @ w) >= 0
        clear = ROUNDING * w.norm() * tokens.norm(dim=-1)
        if bool((sign * sides > clear).all()) and pushes:
            best = rate
    return best
