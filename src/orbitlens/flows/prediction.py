"""What theory says of a system before it is simulated, and how sure that is.

Enters: a `System` and tokens. Leaves: a `Prediction`: a fate, and whether a certificate (T2, T3 or
T4), the signs of the alignment, or only the Gaussian closure speaks for it.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch

from orbitlens._types import Tokens
from orbitlens.families.architecture import Position
from orbitlens.flows.certify import flow_certificates, half_space_rate
from orbitlens.flows.fields import checked_positions
from orbitlens.flows.outcome import Fate
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.head import Head
from orbitlens.theory.certificates import Certificate
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import LayerDrift

CLEAR = 0.2  # expansion index beyond which the closure is taken to speak clearly


class Ground(StrEnum):
    """What a prediction rests on, from proved to plausible."""

    CERTIFICATE = "certificate"
    INDICATION = "indication"  # the signs of sym(W) and sym(A), without the other hypotheses
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
    r = system.d_head
    zero = torch.zeros(r, dtype=torch.float64)
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
        )
        for h in range(system.n_heads)
    ]


def predict(system: System, tokens: Tokens) -> Prediction:
    """Say what theory expects of `tokens` under `system`, by the strongest means that applies."""
    if not _is_plain(system):
        why = "the theorems and the closure are for free flows with softmax attention and no noise"
        return Prediction(fate=Fate.MIXED, source=Ground.NONE, why=why, certificates=())
    if system.positions is not None:  # added at the input: the start, and nothing after it
        tokens = tokens + checked_positions(system, tokens.shape[0])
    heads = heads_of(system)
    maps = [HeadMaps.of(head) for head in heads]
    certificates = flow_certificates(system, tokens, heads, maps)
    source, fate, why = (
        _by_certificate(system, tokens, maps, certificates)
        or _by_signs(maps)
        or (Ground.CLOSURE, *_by_closure(maps))
    )
    return Prediction(fate=fate, source=source, why=why, certificates=certificates)


def _is_plain(system: System) -> bool:
    return (
        system.geometry is Geometry.FREE
        and not system.unnormalised
        and system.noise == 0
        and not system.reinjected
    )


Outlook = tuple[Ground, Fate, str]


def _by_certificate(
    system: System, tokens: Tokens, maps: list[HeadMaps], certificates: tuple[Certificate, ...]
) -> Outlook | None:
    held = {c.name: c for c in certificates if c.holds}
    if "T2" in held:
        fate = Fate.DIVERGING if maps[0].alignment_signs[0] > 0 else Fate.CONVERGING
        return Ground.CERTIFICATE, fate, f"T2: {held['T2'].why}"
    if "T3" in held:
        rate = half_space_rate(maps[0], tokens, system.drift)
        why = f"T3: all tokens lie on one side of an eigenvector of V, eigenvalue {rate:.3g}"
        return Ground.CERTIFICATE, Fate.DIVERGING, why
    if "T4" in held and held["T4"].margin > 0:
        return Ground.CERTIFICATE, Fate.DIVERGING, f"T4: {held['T4'].why}"
    return None


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
    drift = LayerDrift(maps[0].d_model, sum(m.left.shape[1] for m in maps))
    for m in maps:
        drift.add(m)
    index = drift.rates(exact=True).expansion_index
    fate = Fate.MIXED
    if abs(index) > CLEAR:
        fate = Fate.DIVERGING if index > 0 else Fate.CONVERGING
    return fate, f"the expansion index is {index:+.2f} (a Gaussian cloud's first move)"
