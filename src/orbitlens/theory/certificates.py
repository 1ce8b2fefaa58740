"""Certificates: what a theorem about a flow of tokens says, and which of its hypotheses hold.

T1 to T5 speak of tokens in the raw stream, N1 to N6 of their directions, behind norms. Each is
proved in docs/certificates.md, with the margin that rounding and tolerances leave it: a statement
holds with the numbers that it names, or it is not printed as held.

A sign pattern alone (`alignment_signs`, the expansion index) is an indication, never a certificate.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Theorem:
    """What a certificate says and which settings it survives."""

    statement: str
    survives_rotary: bool
    survives_mask: str  # which masks it is proved for
    heads: str  # of how many heads it speaks


THEOREMS: dict[str, Theorem] = {
    "T1": Theorem(
        statement="pair distances in the metric |A| never shrink (A > 0) or never grow (A < 0)",
        survives_rotary=False,
        survives_mask="full only",
        heads="one",
    ),
    "T2": Theorem(
        statement="the cloud of tokens diverges (A > 0), or all tokens converge to 0 (A < 0)",
        survives_rotary=False,
        survives_mask="full; causal if W is symmetric",
        heads="one",
    ),
    "T3": Theorem(
        statement="tokens on one side of a hyperplane diverge at least like exp(lambda t)",
        survives_rotary=True,
        survives_mask="any",
        heads="one",
    ),
    "T4": Theorem(
        statement="the first token follows V alone: diverges or converges with V's abscissa",
        survives_rotary=True,
        survives_mask="causal only",
        heads="all",
    ),
    "T5": Theorem(
        statement="no token grows faster than exp(|V| t)",
        survives_rotary=True,
        survives_mask="any",
        heads="all",
    ),
}

NORMALISED: dict[str, Theorem] = {
    "N1": Theorem(
        statement="tokens in one half-space gather in one direction (V_h = v_h I, v_h > 0)",
        survives_rotary=True,
        survives_mask="any without a window",
        heads="all",
    ),
    "N1c": Theorem(
        statement="tokens on one side of a hyperplane converge to V's leading direction",
        survives_rotary=True,
        survives_mask="any",
        heads="one",
    ),
    "N2": Theorem(
        statement="the first token's direction goes to the leading eigenvector of V",
        survives_rotary=True,
        survives_mask="causal only",
        heads="all",
    ),
    "N3": Theorem(
        statement="from almost every start all tokens take the first one's direction (V_h = v_h I)",
        survives_rotary=True,
        survives_mask="causal without a window",
        heads="all",
    ),
    "N4": Theorem(
        statement="attention's entropy never falls below a floor",
        survives_rotary=True,
        survives_mask="any",
        heads="all",
    ),
    "N5": Theorem(
        statement="tokens at one common angle stay so, and their cosine solves one equation",
        survives_rotary=False,
        survives_mask="full only",
        heads="all",
    ),
    "N6": Theorem(
        statement="the energy sum_ij exp(score_ij) never falls (V = k W) or never rises (k < 0)",
        survives_rotary=False,
        survives_mask="full only",
        heads="one",
    ),
}


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    """One condition of a theorem, checked on its own."""

    name: str
    holds: bool
    detail: str  # why it fails; empty where it holds


@dataclass(frozen=True, kw_only=True)
class Certificate:
    """A theorem applied to one head, layer or flow."""

    name: str
    holds: bool
    margin: float  # signed distance to failing; its unit is the theorem's (see `why`)
    why: str  # the conclusion, or the hypotheses that fail
    hypotheses: tuple[Hypothesis, ...]
    numbers: dict[str, float] = field(default_factory=dict)  # of the conclusion, where it holds


def certify(
    name: str,
    hypotheses: Sequence[Hypothesis],
    *,
    margin: float,
    conclusion: str,
    numbers: dict[str, float] | None = None,
) -> Certificate:
    """Return a certificate that holds if all its hypotheses do."""
    failed = [f"{h.name}: {h.detail}" for h in hypotheses if not h.holds]
    return Certificate(
        name=name,
        holds=not failed,
        margin=margin,
        why=conclusion if not failed else "no certificate; " + "; ".join(failed),
        hypotheses=tuple(replace(h, detail="") if h.holds else h for h in hypotheses),
        numbers={} if failed else numbers or {},
    )


def rounded_up(value: float) -> str:
    """Return a number to three digits, never below it: for what is not exceeded.

    >>> rounded_up(8.6643), rounded_up(2.0)
    ('8.67', '2')
    """
    return _rounded(value, "ceil")


def rounded_down(value: float) -> str:
    """Return a number to three digits, never above it: for what is always reached.

    >>> rounded_down(0.49996)
    '0.499'
    """
    return _rounded(value, "floor")


def _rounded(value: float, how: str) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:.3g}"
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    steps = value / unit
    near = round(steps)
    if abs(steps - near) > 1e-9:  # 2.0000000000000004 is 2
        near = math.ceil(steps) if how == "ceil" else math.floor(steps)
    return f"{near * unit:.3g}"
