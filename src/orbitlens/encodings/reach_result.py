"""What `positions` says of a context's reach: heads, losses predicted and measured, advice.

Enters: nothing (plain data). Leaves: frozen dataclasses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas

FELT = 0.05  # of the largest effect of a swap: what is smaller is taken not to matter


@dataclass(frozen=True, kw_only=True)
class HeadReach:
    """What one head's scores do over distance, from its weights and statistics of short text."""

    layer: int
    head: int
    periods: tuple[float, ...]  # tokens of a turn of each plane, fast to slow; empty: not rotary
    shares: tuple[float, ...]  # of each plane in the mean square of scores
    unfinished: float | None  # share in planes that never complete a turn in the trained context
    kernel_mean: tuple[float, ...]  # of scores, at the offsets of the result
    kernel_deviation: tuple[float, ...]
    attention: tuple[float, ...]  # predicted weight of one token at that offset, longest context
    sharpness: tuple[float, ...]  # sum of squared weights by T7, in contexts of `lengths` tokens
    half: int  # tokens back within which half of its attention falls, in the trained context
    beyond: float  # share of its attention further back than that, in the longest context


@dataclass(frozen=True, kw_only=True)
class ReachPoint:
    """Loss at the end of one length of context, above that of the trained one."""

    ratio: float  # of the trained context
    length: int
    predicted: float | None  # nats a token, from short texts alone; None: cannot be run so
    predicted_error: float | None  # standard error over texts
    measured: float | None  # nats a token, on long text; None: not run
    measured_error: float | None


@dataclass(frozen=True, kw_only=True)
class ScalingTrial:
    """What one way of stretching the encoding is expected to lose, and what it loses."""

    name: str
    kind: str
    factor: float
    predicted: float  # nats a token above the model as it is within its trained context
    measured: float | None = None  # loss on long text; None: not run


@dataclass(frozen=True, kw_only=True)
class Advice:
    """How to run a longer context: chosen from short texts."""

    ratio: float  # of the trained context that is asked for
    chosen: str  # the name of a trial
    setting: dict[str, Any] | None  # of the config; None: its code knows no such scaling
    trials: tuple[ScalingTrial, ...]  # best first, as predicted

    @property
    def best(self) -> ScalingTrial:
        """The trial that was chosen."""
        return next(trial for trial in self.trials if trial.name == self.chosen)

    @property
    def rule(self) -> ScalingTrial | None:
        """YaRN with the factor asked for: what one would set without looking, if it was tried."""
        found = (t for t in self.trials if t.kind == "yarn" and t.factor == self.ratio)
        return next(found, None)

    @property
    def unchanged(self) -> ScalingTrial:
        """The model as it is."""
        return next(trial for trial in self.trials if trial.kind == "none")


@dataclass(frozen=True, kw_only=True)
class OrderPoint:
    """What a swap of two neighbours does to the prediction."""

    distance: int  # tokens back from the last
    bits: float  # Jensen-Shannon divergence; relative change where there are no logits


@dataclass(frozen=True, kw_only=True, repr=False)
class Reach(Result):
    """How far a context reaches."""

    KIND: ClassVar[str] = "reach"

    trained: int  # tokens: of the config, or as given
    offsets: tuple[int, ...]  # of kernels
    lengths: tuple[int, ...]  # of contexts for which sharpness is predicted
    heads: tuple[HeadReach, ...]
    points: tuple[ReachPoint, ...]
    by_position: tuple[tuple[int, float], ...]  # end of a stretch, its measured loss; or empty
    order: tuple[OrderPoint, ...]
    advice: Advice | None
    n_short: int  # short texts
    n_long: int  # long rows that were measured
    notes: tuple[str, ...]

    @property
    def order_distance(self) -> int | None:
        """Tokens back beyond which no swap of neighbours does 5 % of what the strongest does."""
        if not self.order:
            return None
        largest = max(point.bits for point in self.order)
        felt = [point.distance for point in self.order if point.bits > FELT * largest]
        return max(felt) if largest > 0 else 0

    def unfinished(self) -> float | None:
        """Return the mean share of scores in planes that never complete a turn; None: no planes."""
        shares = [head.unfinished for head in self.heads if head.unfinished is not None]
        return sum(shares) / len(shares) if shares else None

    def summary(self) -> str:
        """Return what is predicted, what was measured, and the advice, in sentences."""
        from orbitlens.encodings.reach_words import reach_sentences

        return " ".join(reach_sentences(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a head."""
        return data_frame(head_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        points = [[p.ratio, p.length, p.predicted, p.measured] for p in self.points]
        names = ["times", "tokens", "predicted", "measured"]
        tables = [HtmlTable(caption="Loss beyond the context, nats", columns=names, rows=points)]
        if self.advice is not None:
            rows = [[t.name, t.predicted, t.measured] for t in self.advice.trials]
            columns = ["scaling", "predicted", "measured"]
            caption = "Ways to stretch the encoding, nats a token"
            tables.append(HtmlTable(caption=caption, columns=columns, rows=rows))
        return tables

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return the loss above that within the trained context, predicted and measured."""
        lengths = [self.trained, *(point.length for point in self.points)]
        curves = {
            "predicted": [0.0, *(point.predicted for point in self.points)],
            "measured": [0.0, *(point.measured for point in self.points)],
        }
        drawn = go.Figure(
            [
                go.Scatter(name=name, x=lengths, y=values, mode="lines+markers")
                for name, values in curves.items()
                if any(value is not None for value in values[1:])
            ]
        )
        drawn.update_layout(title="Loss beyond the trained context")
        drawn.update_xaxes(title="tokens of context")
        drawn.update_yaxes(title="nats a token above the trained context")
        return drawn


def head_rows(reach: Reach) -> Iterator[dict[str, object]]:
    """Yield one row a head."""
    for head in reach.heads:
        yield {
            "layer": head.layer,
            "head": head.head,
            "unfinished": head.unfinished,
            "half": head.half,
            "beyond": head.beyond,
            **{
                f"sharpness_{length}": value
                for length, value in zip(reach.lengths, head.sharpness, strict=True)
            },
        }
