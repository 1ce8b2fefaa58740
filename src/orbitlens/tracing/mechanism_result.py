"""Scores of mechanisms that papers describe, head by head, beside an untrained twin's.

Enters: nothing (plain data). Leaves: frozen dataclasses, and what they say in words. A score that
cannot be taken is None, and `Mechanisms.reasons` says why.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas

# How far above the twin's largest score a head must be, set before any model was measured.
THRESHOLDS = {"induction": 0.2, "previous": 0.2, "saturation": 0.2, "margin": 1.0}
MOST_NAMED = 4  # heads in a sentence


@dataclass(frozen=True, kw_only=True)
class HeadScores:
    """What one head does; chance is 0 for induction, previous and saturation."""

    induction: float | None  # `repeated` less `reordered`; -1 to 1
    induction_error: float | None  # standard error of that, over draws
    repeated: float | None  # attention to what followed a token before; 0 to 1
    reordered: float | None  # to the same places, where nothing repeats in order: the control
    previous: float | None  # attention to the token in front, less an even share; -1 to 1
    saturation: float | None  # 0: even; 1: softmax has reached its saturated limit
    margin: float | None  # selected token's score less the next one's, mean over rows; nats
    margin_share: float | None  # the same over the range of a row's scores; 0 to 1


@dataclass(frozen=True, kw_only=True)
class HeadMechanisms(HeadScores):
    """One head of a model beside the same place in its untrained twin."""

    stack: str
    layer: int
    head: int
    twin: HeadScores

    @property
    def name(self) -> str:
        """The head as "layer.head"; with the name of its stack for an encoder."""
        place = f"{self.layer}.{self.head}"
        return place if self.stack == "decoder" else f"{self.stack} {place}"


@dataclass(frozen=True, kw_only=True)
class RepetitionLosses:
    """Mean losses on random tokens, in nats a token."""

    first: float  # first half: nothing to be known
    repeated: float  # second half, which repeats the first
    reordered: float  # second half of the control: the same tokens in another order

    @property
    def drop(self) -> float:
        """What repetition in order saves: `reordered` less `repeated`."""
        return self.reordered - self.repeated


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """The sequences behind the induction score, and how well the model predicts them."""

    n_draws: int
    half: int  # tokens of each half
    prefix: int  # special tokens in front
    n_ids: int  # different tokens that draws are taken from
    from_text: bool  # those of the text; or, where it has too few, all that are not special
    chance: float  # attention that an even head gives to one place; it cancels in `induction`
    losses: RepetitionLosses | None  # None for a model that predicts no tokens
    twin_losses: RepetitionLosses | None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Which heads have one score above the twin's largest by the threshold."""

    score: str  # a name of `THRESHOLDS`
    threshold: float
    best: float
    best_head: str
    twin_largest: float
    heads: tuple[str, ...]  # best first


@dataclass(frozen=True, kw_only=True, repr=False)
class Mechanisms(Result):
    """Scores of every head, and what follows from them."""

    KIND: ClassVar[str] = "mechanisms"

    heads: tuple[HeadMechanisms, ...]
    findings: tuple[Finding, ...]  # of the scores that could be taken
    repetition: Repetition | None
    reasons: Mapping[str, str]  # score -> why it could not be taken, everywhere or somewhere
    n_contexts: int  # of text, for saturation and margin
    max_attention_error: float  # of attention recomputed from the weights, relative

    def finding(self, score: str) -> Finding | None:
        """Return the finding of one score; None where it could not be taken."""
        return next((one for one in self.findings if one.score == score), None)

    def summary(self) -> str:
        """Return what the scores say, a line for each."""
        return "\n".join(in_words(self))

    # The module that describes mechanisms stands on this one, so it is imported when needed.

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a head: its scores, and the twin's with the prefix `twin_`."""
        from orbitlens.tracing.views import mechanism_rows

        return data_frame(mechanism_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        from orbitlens.tracing.views import score_table

        return [score_table(self)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        from orbitlens.tracing.views import mechanisms_figure

        return mechanisms_figure(self, go)


def findings(heads: Sequence[HeadMechanisms]) -> tuple[Finding, ...]:
    """Return for every score the heads that exceed the twin's largest by its threshold."""
    kept = []
    for score, threshold in THRESHOLDS.items():
        own = [(getattr(head, score), head.name) for head in heads]
        own = [(value, name) for value, name in own if value is not None]
        twin = [getattr(head.twin, score) for head in heads]
        twin = [value for value in twin if value is not None]
        if not own or not twin:
            continue
        own.sort(key=lambda pair: -pair[0])
        largest = max(twin)
        kept.append(
            Finding(
                score=score,
                threshold=threshold,
                best=own[0][0],
                best_head=own[0][1],
                twin_largest=largest,
                heads=tuple(name for value, name in own if value >= largest + threshold),
            )
        )
    return tuple(kept)


# --- in words --------------------------------------------------------------------------------


def in_words(mechanisms: Mechanisms) -> list[str]:
    """Return what the scores say, one sentence or two for each."""
    sentences = [_induction(mechanisms), _copying(mechanisms), _selection(mechanisms)]
    return [sentence for sentence in sentences if sentence]


def _induction(mechanisms: Mechanisms) -> str:
    result = mechanisms.finding("induction")
    if result is None:
        why = mechanisms.reasons.get("induction")
        return f"Induction was not measured: {why}." if why else ""
    beside = f"the untrained twin's best {result.twin_largest:.2f}"
    if result.heads:
        text = f"{_many(result.heads, 'induction head')}; the best reaches {result.best:.2f}, "
    else:
        text = f"No induction heads: the best, head {result.best_head}, reaches {result.best:.2f}, "
    return f"{text}{beside}, and {result.threshold} above that is asked.{_losses(mechanisms)}"


def _losses(mechanisms: Mechanisms) -> str:
    repetition = mechanisms.repetition
    if repetition is None or repetition.losses is None or repetition.twin_losses is None:
        return ""
    own, twin = (_signed(-losses.drop) for losses in (repetition.losses, repetition.twin_losses))
    return f" Repeating in order changes the loss on random tokens by {own} nats (twin {twin})."


def _signed(value: float) -> str:
    return f"{round(value, 2) + 0.0:+.2f}"  # + 0.0 turns -0.0 into 0.0


def _copying(mechanisms: Mechanisms) -> str:
    result = mechanisms.finding("previous")
    if result is None:
        return ""
    if not result.heads:
        return (
            f"No head looks at the token in front: the best, head {result.best_head}, reaches "
            f"{result.best:.2f}, the twin's {result.twin_largest:.2f}."
        )
    names = _many(result.heads, "head") + (" look" if len(result.heads) > 1 else " looks")
    return (
        f"{names} at the token in front; the best reaches {result.best:.2f}, the twin's "
        f"{result.twin_largest:.2f}."
    )


def _selection(mechanisms: Mechanisms) -> str:
    saturation, margin = mechanisms.finding("saturation"), mechanisms.finding("margin")
    if saturation is None or margin is None:
        why = mechanisms.reasons.get("saturation")
        return f"Saturation and margin were not measured: {why}." if why else ""
    n = len(mechanisms.heads)
    return (
        f"{len(saturation.heads)} of {n} heads are more saturated than the twin's most by "
        f"{saturation.threshold} (most: head {saturation.best_head}, {saturation.best:.2f}; twin "
        f"{saturation.twin_largest:.2f}). {len(margin.heads)} select by a margin of "
        f"{margin.threshold:g} nat more than any of the twin's (widest: head {margin.best_head}, "
        f"{margin.best:.1f} nats; twin {margin.twin_largest:.1f})."
    )


def _many(names: Sequence[str], what: str) -> str:
    """Write "2 induction heads (1.3, 2.0)"; of many heads, the first few are named."""
    listed = ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
    return f"{len(names)} {what}{'s' if len(names) > 1 else ''} ({listed})"
