"""N1c, N2 and N4 of a head or a layer: the flow of normalised tokens, from weights alone.

Enters: a `Head`, or what is known of all heads of a layer. Leaves: certificates that speak of
directions (docs/certificates.md), of the flow of the head, or the layer, repeated at every depth
behind its norm. Of which start they speak is part of what they say.
"""

import math
from collections.abc import Sequence

from orbitlens.heads.head import Head
from orbitlens.theory.certificates import Certificate, Hypothesis, certify, rounded_up
from orbitlens.theory.dominance import Leading
from orbitlens.theory.eigenpairs import Matrix
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.plain import is_zero, linear_values, value_matrix
from orbitlens.theory.sharpness import entropy_floor, score_spread, smallest_weight

LEAST_ENTROPY = 0.01  # of ln n: a lower floor says nothing
CONTEXT = 128  # tokens for which the floor is stated where their number is not known


def normalised_head_certificates(
    head: Head, maps: HeadMaps, *, length: float | None
) -> tuple[Certificate, ...]:
    """Check N1c, N2 and N4 on the flow of one head alone.

    `length` bounds the tokens that the head sees, the norm's gain folded into its weights: the root
    of d_model behind a norm, None where there is none.
    """
    matrix, scale, kernel = value_matrix(maps)
    leading = Leading.of(matrix, scale)
    still, normed = is_zero(head.value_shift), _normalised(length)
    spread = None
    if length is not None:
        spread = score_spread(head, maps, length=length, n_tokens=CONTEXT)
    return (
        _cone([head], leading, still=still, normed=normed),
        _first_direction([head], leading, kernel=kernel, still=still, normed=normed),
        sharpness_statement([spread], CONTEXT),
    )


def normalised_layer_certificates(
    heads: Sequence[Head], value_sum: Matrix, *, scale: float, length: float | None, still: bool
) -> tuple[Certificate, ...]:
    """Check N2 on all heads of a layer at once; `still`: no bias moves tokens."""
    leading = Leading.of(value_sum, scale)
    normed = _normalised(length)
    return (_first_direction(heads, leading, kernel=False, still=still, normed=normed),)


def _normalised(length: float | None) -> Hypothesis:
    return Hypothesis(
        name="a norm stands in front of attention",
        holds=length is not None,
        detail="heads see tokens of any length",
    )


def _no_biases(still: bool) -> Hypothesis:
    return Hypothesis(name="no biases", holds=still, detail="they pull every token")


def _cone(
    heads: Sequence[Head], leading: Leading | None, *, still: bool, normed: Hypothesis
) -> Certificate:
    lag = None if leading is None else leading.in_size
    alone = Hypothesis(
        name="V's largest eigenvalue is real, positive and alone",
        holds=lag is not None,
        detail="it is not, or cannot be told from its neighbours",
    )
    return certify(
        "N1c",
        [normed, linear_values(heads), _no_biases(still), alone],
        margin=0.0 if lag is None else 2 * (1 - lag.factor),
        conclusion="tokens on one side of a hyperplane converge to V's leading direction",
    )


def _first_direction(
    heads: Sequence[Head],
    leading: Leading | None,
    *,
    kernel: bool,
    still: bool,
    normed: Hypothesis,
) -> Certificate:
    lag = None if leading is None else leading.in_time
    rises = leading is not None and leading.value > 2 * leading.error
    hypotheses = [
        normed,
        Hypothesis(
            name="the mask is causal",
            holds=all(head.causal for head in heads),
            detail="the first token sees the others too",
        ),
        linear_values(heads),
        _no_biases(still),
        Hypothesis(
            name="the leading eigenvalue of V is real, positive and alone",
            holds=lag is not None and rises,
            detail="it is not, or cannot be told from its neighbours",
        ),
    ]
    gap = 0.0 if lag is None or leading is None else 2 * lag.rate
    if kernel and leading is not None:  # the rank of V adds eigenvalues 0
        gap = min(gap, leading.value)
    return certify(
        "N2",
        hypotheses,
        margin=gap,
        conclusion="from almost every start the first token converges to V's leading direction",
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
            detail=f"scores may differ by {spread:.3g}, and it is {share:.1e} of it",
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
