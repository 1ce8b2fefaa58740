"""N1c, N2 and N4 of a head or a layer: the flow of normalised tokens, from weights alone.

Enters: a `Head`, or what is known of all heads of a layer. Leaves: certificates that speak of
directions (docs/certificates.md), of the flow of the head, or the layer, repeated at every depth
behind its norm. Of which start they speak is part of what they say.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from orbitlens._types import ComplexSpectrum
from orbitlens.heads.head import Head
from orbitlens.theory.certificates import Certificate, Hypothesis, certify, rounded_up
from orbitlens.theory.dominance import Leading
from orbitlens.theory.eigenpairs import Matrix
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.plain import is_zero, linear_values, value_matrix
from orbitlens.theory.sharpness import entropy_floor, score_spread, smallest_weight

LEAST_ENTROPY = 0.01  # of ln n: a lower floor says nothing
CONTEXT = 128  # tokens for which the floor is stated where their number is not known


@dataclass(frozen=True, kw_only=True)
class ValueFlow:
    """What moves normalised tokens: the value map of a head, or the sum of those of a layer."""

    by: str  # what moves them, in words
    head: Head  # one of them: heads of a layer share mask, norm and kind of values
    still: bool  # whether no bias moves tokens
    spectrum: ComplexSpectrum | None  # eigenvalues as computed; None: not asked for
    matrix: Callable[[], tuple[Matrix, float]]  # with these eigenvalues, and the size of its parts
    has_kernel: bool  # whether the map's rank adds eigenvalues 0 to these

    @classmethod
    def of(cls, head: Head, maps: HeadMaps) -> "ValueFlow":
        """Return the flow of one head alone."""
        return cls(
            by="this head alone",
            head=head,
            still=is_zero(head.value_shift),
            spectrum=maps.value_spectrum,
            matrix=lambda: value_matrix(maps)[:2],
            has_kernel=head.d_head < head.d_model,
        )

    @cached_property
    def hypotheses(self) -> list[Hypothesis]:
        """What N1c and N2 ask for alike, but for eigenvalues."""
        head = self.head
        return [
            Hypothesis(
                name="a norm stands in front of attention and none behind",
                holds=head.norm is not None and not head.post_norm,
                detail="one stands behind, and its gain turns directions"
                if head.post_norm
                else "heads see tokens of any length",
            ),
            linear_values([head]),
            Hypothesis(name="no biases", holds=self.still, detail="they pull every token"),
        ]

    @cached_property
    def leading(self) -> Leading | None:
        """The eigenvalue of largest real part, if it is real and positive; as computed at first.

        Metrics and radii are computed only where eigenvalues and all else leave it open.
        """
        if self.spectrum is None or not all(h.holds for h in self.hypotheses):
            return None
        first = self.spectrum[self.spectrum.real.argmax()]
        if first.imag != 0 or first.real <= 0:
            return None
        leading = Leading.of(*self.matrix())
        return leading if leading is not None and leading.value > 2 * leading.error else None

    def led(self, hypotheses: Sequence[Hypothesis], name: str, holds: bool) -> list[Hypothesis]:
        """Add to hypotheses, where they hold, the one on eigenvalues."""
        if not all(h.holds for h in hypotheses):
            return list(hypotheses)
        unknown = "they were not computed; ask for exact spectra"
        detail = "it is not, or cannot be told from its neighbours"
        asked = Hypothesis(
            name=name, holds=holds, detail=unknown if self.spectrum is None else detail
        )
        return [*hypotheses, asked]


def head_spread(head: Head, maps: HeadMaps) -> float | None:
    """Return by how much scores of one query may differ behind a norm; None: no bound is known.

    The norm's gain is folded into the head, so that it sees tokens no longer than the root of
    d_model.
    """
    if head.norm is None:
        return None
    return score_spread(head, maps, length=math.sqrt(head.d_model), n_tokens=CONTEXT)


def normalised_head_certificates(
    head: Head, maps: HeadMaps, spread: float | None
) -> tuple[Certificate, ...]:
    """Check N1c, N2 and N4 on the flow of one head alone; `spread` is its `head_spread`."""
    flow = ValueFlow.of(head, maps)
    cone = _cone(flow)
    # What is ahead in size is ahead in real part: no second metric is needed.
    first = _first_direction(flow, ahead=cone.holds)
    return cone, first, sharpness_statement([spread], CONTEXT)


def normalised_layer_certificates(
    flow: ValueFlow, spreads: Sequence[float | None]
) -> tuple[Certificate, ...]:
    """Check N2 and N4 on all heads of a layer at once; N1c is proved for one head only."""
    return _first_direction(flow, ahead=False), sharpness_statement(spreads, CONTEXT)


def _cone(flow: ValueFlow) -> Certificate:
    lag = None if flow.leading is None else flow.leading.in_size
    name = "V's largest eigenvalue is real, positive and alone"
    return certify(
        "N1c",
        flow.led(flow.hypotheses, name, lag is not None),
        margin=0.0 if lag is None else 2 * (1 - lag.factor),
        conclusion=f"by {flow.by}, tokens on one side of a hyperplane converge to V's leading "
        "direction",
    )


def _first_direction(flow: ValueFlow, *, ahead: bool) -> Certificate:
    causal = Hypothesis(
        name="the mask is causal",
        holds=flow.head.causal,
        detail="the first token sees the others too",
    )
    leading = flow.leading if causal.holds else None
    if leading is not None and not ahead and leading.in_time is None:
        leading = None
    others = [] if leading is None else [*leading.others.real, *([0.0] if flow.has_kernel else [])]
    name = "the leading eigenvalue of V is real, positive and alone"
    return certify(
        "N2",
        flow.led([*flow.hypotheses, causal], name, leading is not None),
        margin=0.0 if leading is None else leading.value - max(others, default=0.0),
        conclusion=f"by {flow.by}, from almost every start the first token converges to V's "
        "leading direction",
    )


def sharpness_statement(spreads: Sequence[float | None], n_tokens: int) -> Certificate:
    """N4: scores of one query differ by the largest of `spreads` at most; None: no bound is known.

    The margin is the floor of the entropy of a token that sees `n_tokens`, over ln n.
    """
    known = [spread for spread in spreads if spread is not None]
    bounded = len(known) == len(spreads)
    spread = max(known, default=0.0)
    floor = entropy_floor(spread, n_tokens) * (1 - 1e-9) if bounded else 0.0
    share = floor / math.log(n_tokens) if n_tokens > 1 else 0.0
    hypotheses = [
        Hypothesis(name="scores are bounded", holds=bounded, detail="their size is not known"),
        Hypothesis(
            name=f"the floor is {LEAST_ENTROPY:.0%} of ln n or more",
            holds=not bounded or share >= LEAST_ENTROPY,
            detail=f"scores may differ by {spread:.3g}",
        ),
    ]
    return certify(
        "N4",
        hypotheses,
        margin=share,
        conclusion=f"the entropy of a token that sees {n_tokens} is never below "
        f"{math.floor(share * 1000) / 10:g} % of ln {n_tokens}: scores differ by at most "
        f"{rounded_up(spread)}",
        numbers={
            "spread": spread,
            "entropy": floor,
            "weight": smallest_weight(spread, n_tokens) * (1 - 1e-9),
        },
    )
