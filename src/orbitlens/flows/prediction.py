"""What theory says of a system before it is simulated, and how sure that is.

Enters: a `System` and tokens. Leaves: a `Prediction`: a fate, and whether a certificate, a theorem
or signs short of one, or only the Gaussian closure speaks for it. Of free flows the fate is that of
the cloud's size (T2, T3, T4), of the others that of its directions (N1, N1c).
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import torch

from orbitlens._types import Tokens
from orbitlens.families.architecture import Position
from orbitlens.flows.certify import flow_certificates
from orbitlens.flows.certify_directions import direction_certificates
from orbitlens.flows.fields import checked_positions
from orbitlens.flows.outcome import Fate
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.head import Head
from orbitlens.theory.certificates import Certificate
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import LayerDrift

WEIGHTS, SIZES = 1e25, 1e50  # of factors, of tokens: beyond them, or 1 over them, squares of maps
# and of tokens leave the range of floats, and what is computed proves nothing
CLEAR = 0.2  # expansion index beyond which the closure is taken to speak clearly


class Ground(StrEnum):
    """What a prediction rests on, from proved to plausible."""

    CERTIFICATE = "certificate"
    INDICATION = "indication"  # the signs of sym(W) and sym(A) alone, or almost every start (N3)
    CLOSURE = "closure"  # the expansion index: what a Gaussian cloud would do first
    NONE = "none"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is expected of a system, and why."""

    fate: Fate
    source: Ground
    why: str
    certificates: tuple[Certificate, ...]  # of the flow, drift and start included


def heads_of(system: System) -> list[Head]:
    """Return the heads of a system as the theory's functions want them."""
    zero = torch.zeros(system.d_head, dtype=torch.float64)
    slopes = system.alibi_slopes
    position = Position.NONE
    if system.rotary is not None:
        position = Position.ROTARY
    elif system.alibi_slopes is not None:
        position = Position.ALIBI
    elif system.positions is not None:
        position = Position.LEARNED
    return [
        Head(
            w_q=system.w_q[h] * system.beta,
            w_k=system.w_k[h],
            w_v=system.w_v[h],
            w_o=system.w_o[h],
            b_q=zero if system.b_q is None else system.b_q[h] * system.beta,
            b_k=zero if system.b_k is None else system.b_k[h],
            b_v=zero,
            scale=1.0,
            index=h,
            causal=system.mask is Mask.CAUSAL,
            window=system.window,
            position=position,
            rotary=system.rotary,
            alibi_slope=0.0 if slopes is None else system.beta * slopes[h].item(),
        )
        for h in range(system.n_heads)
    ]


def predict(system: System, tokens: Tokens) -> Prediction:
    """Say what theory expects of `tokens` under `system`, by the strongest means that applies."""
    if system.unnormalised or system.noise > 0 or system.reinjected:
        why = "theorems and closure are for softmax attention, without noise or re-injection"
        return Prediction(fate=Fate.MIXED, source=Ground.NONE, why=why, certificates=())
    if not _in_range(system, tokens):
        why = "weights or tokens are so large or so small that floats can check no theorem"
        return Prediction(fate=Fate.MIXED, source=Ground.NONE, why=why, certificates=())
    if system.positions is not None:  # added at the input: the start, and nothing after it
        tokens = tokens + checked_positions(system, tokens.shape[0])
    if system.window is not None and system.window >= tokens.shape[0]:
        system = replace(system, window=None)
    heads = heads_of(system)
    maps = [HeadMaps.of(head) for head in heads]
    if system.geometry is Geometry.FREE:
        certificates = flow_certificates(system, tokens, heads, maps)
        source, fate, why = (
            _by_certificate(certificates)
            or (_by_signs(maps) if _is_undriven(system, tokens) else None)
            or (Ground.CLOSURE, *_by_closure(maps))
        )
    else:
        certificates = direction_certificates(system, tokens, heads, maps)
        source, fate, why = _by_direction(certificates)
    return Prediction(fate=fate, source=source, why=why, certificates=certificates)


def _in_range(system: System, tokens: Tokens) -> bool:
    """Whether weights and tokens are of sizes whose products floats can hold."""
    factors = (system.w_q * system.beta, system.w_k, system.w_v, system.w_o, system.b_q, system.b_k)
    given = [part for part in (*factors, system.alibi_slopes) if part is not None]
    moved = [tokens.abs().amax(dim=1)]
    moved += [part.abs().max() for part in (system.drift, system.positions) if part is not None]
    return all(_within(part.abs().max(), WEIGHTS) for part in given) and all(
        _within(part, SIZES) for part in moved
    )


def _within(sizes: torch.Tensor, largest: float) -> bool:
    return bool(((sizes == 0) | ((sizes >= 1 / largest) & (sizes <= largest))).all())


Outlook = tuple[Ground, Fate, str]


def _by_certificate(certificates: tuple[Certificate, ...]) -> Outlook | None:
    """Return the fate of the cloud's size that is proved."""
    held = {c.name: c for c in certificates if c.holds}
    if "T2" in held:
        fate = Fate.DIVERGING if held["T2"].numbers["sign"] > 0 else Fate.CONVERGING
        return Ground.CERTIFICATE, fate, f"T2: {held['T2'].why}"
    for name in ("T3", "T4"):
        if name in held and "rate" in held[name].numbers:
            return Ground.CERTIFICATE, Fate.DIVERGING, f"{name}: {held[name].why}"
    return None


def _by_direction(certificates: tuple[Certificate, ...]) -> Outlook:
    """Return the fate of the cloud's directions that is proved, if any is."""
    held = {c.name: c for c in certificates if c.holds}
    for name in ("N1", "N1c"):
        if name in held:
            return Ground.CERTIFICATE, Fate.CONVERGING, f"{name}: {held[name].why}"
    if "N3" in held:
        return Ground.INDICATION, Fate.CONVERGING, f"N3: {held['N3'].why}"
    return Ground.NONE, Fate.MIXED, "no theorem says where the directions of these tokens go"


def _is_undriven(system: System, tokens: Tokens) -> bool:
    """Whether nothing but attention moves tokens, and it does: what the signs speak of."""
    return bool(tokens.any()) and (system.drift is None or not bool(system.drift.any()))


def _by_signs(maps: list[HeadMaps]) -> Outlook | None:
    if len(maps) != 1 or maps[0].rank < maps[0].d_model:
        return None
    w = maps[0].left @ maps[0].right.T
    if torch.linalg.eigvalsh((w + w.T) / 2)[0] <= 0:
        return None
    positive, negative = maps[0].alignment_signs
    if positive + negative < maps[0].rank:  # a direction without a sign decides nothing
        return None
    if positive and negative:
        return (
            Ground.INDICATION,
            Fate.MIXED,
            (f"sym(W) > 0 and sym(A) has {positive} positive and {negative} negative directions"),
        )
    fate = Fate.DIVERGING if positive else Fate.CONVERGING
    sign = "positive" if positive else "negative"
    return Ground.INDICATION, fate, f"sym(W) > 0 and sym(A) is {sign} definite: signs alone"


def _by_closure(maps: list[HeadMaps]) -> tuple[Fate, str]:
    drift = LayerDrift(maps[0].d_model, sum(m.left.shape[1] for m in maps), exact=True)
    for m in maps:
        drift.add(m)
    index = drift.rates().expansion_index
    fate = Fate.MIXED
    if abs(index) > CLEAR:
        fate = Fate.DIVERGING if index > 0 else Fate.CONVERGING
    return fate, f"the expansion index is {index:+.2f} (a Gaussian cloud's first move)"
