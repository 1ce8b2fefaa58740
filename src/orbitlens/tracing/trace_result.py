"""The result of a trace: what was measured, beside what was predicted and simulated.

Enters: nothing (plain data). Leaves: frozen dataclasses; every log-change is the natural logarithm
of the factor by which the mean squared pair distance changes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.errors import ResultError
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.running.info import Cost, ModelInfo
from orbitlens.tracing.massive import MassiveToken
from orbitlens.tracing.mechanism_result import Mechanisms

if TYPE_CHECKING:
    import pandas


# What happens between two points of a block; where norms stand in the stream there are more.
STEPS = {
    ("before", "attention"): "attention",
    ("attention", "after"): "mlp",
    ("attention", "normed"): "norm",
    ("normed", "unnormed"): "mlp",
    ("unnormed", "after"): "norm",
}
DEFAULT_CLOSURE = "three-points"  # for directions, the one that "predicted" means


@dataclass(frozen=True, kw_only=True)
class HeadTrace:
    """One head: what it alone does to pair distances, and how sharp it is."""

    head: int
    measured: float
    predicted: float  # by the default closure
    closures: Mapping[str, float]
    sharpness: float
    predicted_sharpness: float
    sharpness_closures: Mapping[str, float]
    entropy: float
    sink: float


@dataclass(frozen=True, kw_only=True)
class AttentionTrace:
    """What attention alone does to pair distances in one layer."""

    measured_log_change: float
    predicted_log_change: float  # by the default closure
    simulated_log_change: float  # by the flow for one unit of time, on a few contexts
    closures: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class MlpTrace:
    """What the MLP alone does; it has no prediction."""

    measured_log_change: float


@dataclass(frozen=True, kw_only=True)
class NormTrace:
    """What norms alone do, by place."""

    measured_log_change: float  # sum over places
    places: Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class HeadDirections:
    """What one head does to S = ln(1 - C), C the mean cosine of directions."""

    share: float  # of what attention does, on the attributed tokens; shares add up
    alone: float  # from the tokens to the tokens plus this head's part
    size: float  # mean length of its part over that of its token, on the text that was fitted on
    predicted: Mapping[str, float]  # share by each closure, from the text that was fitted on
    judged: float  # share measured on the contexts that predictions are judged on


@dataclass(frozen=True, kw_only=True)
class DirectionPoint:
    """Tokens at one point of a block: their directions, and what raw tokens share."""

    name: str  # "before", "attention" (added), "normed", "unnormed" (the MLP added), "after"
    cosine: float  # C, the mean cosine of directions over pairs of a context
    cosine_without_massive: float  # of tokens that are not massive in front of the layer
    shared: float  # M, the mean of x_i . x_j over pairs
    own: float  # D, the mean of |x|^2 less M: half the mean squared pair distance

    @property
    def log_spread(self) -> float:
        """S = ln(1 - C); minus infinity where all directions are one."""
        return math.log1p(-self.cosine) if self.cosine < 1 else -math.inf


@dataclass(frozen=True, kw_only=True)
class DirectionTrace:
    """Directions of the tokens of one layer (theory section 7): C and the changes of ln(1 - C).

    Negative changes gather directions, positive ones spread them. Attention, MLP and norm add up to
    the change from before the layer to after it.
    """

    DERIVED: ClassVar[tuple[str, ...]] = (
        "attention", "mlp", "norm",
        "cosine_before", "cosine_attention", "cosine_after", "cosine_without_massive",
    )  # fmt: skip

    points: tuple[DirectionPoint, ...]  # in the order in which tokens pass them
    attributed: float  # by attention on the first tokens, those on which heads are told apart
    heads: tuple[HeadDirections, ...]
    rest: float  # share of biases
    predicted: Mapping[str, float]  # change by attention, by closure
    judged: float  # change by attention on the contexts that predictions are judged on
    massive: tuple[MassiveToken, ...]  # tokens far longer than their context
    effective_rank: float  # of the directions of a context that enter, on average
    clusters: float  # at cosine 0.9, of the directions of a context that enter, on average

    def __post_init__(self) -> None:
        """Refuse points that no block passes in this order.

        Raises:
            ResultError: with the names.
        """
        names = [point.name for point in self.points]
        if len(names) < 2 or any(pair not in STEPS for pair in pairwise(names)):
            raise ResultError(f"points are {names}; expected 'before', 'attention' and so on.")

    def point(self, name: str) -> DirectionPoint:
        """Return the point of a name; where the block has no such point, a KeyError."""
        return {point.name: point for point in self.points}[name]

    @property
    def steps(self) -> tuple[tuple[str, DirectionPoint, DirectionPoint], ...]:
        """What happens between the points, in order: "attention", "mlp" or "norm"."""
        return tuple(
            (STEPS[before.name, after.name], before, after)
            for before, after in pairwise(self.points)
        )

    def _change(self, part: str) -> float:
        changes = [b.log_spread - a.log_spread for name, a, b in self.steps if name == part]
        return math.fsum(changes)

    @property
    def attention(self) -> float:
        """The change of ln(1 - C) by attention."""
        return self._change("attention")

    @property
    def mlp(self) -> float:
        """The change by the MLP; where the block is parallel, after attention."""
        return self._change("mlp")

    @property
    def norm(self) -> float:
        """The change by norms on the stream itself."""
        return self._change("norm")

    @property
    def cosine_before(self) -> float:
        """C of the tokens that enter."""
        return self.points[0].cosine

    @property
    def cosine_attention(self) -> float:
        """C after attention."""
        return self.points[1].cosine

    @property
    def cosine_after(self) -> float:
        """C of the tokens that leave."""
        return self.points[-1].cosine

    @property
    def cosine_without_massive(self) -> float:
        """C of the tokens that enter, massive ones left out."""
        return self.points[0].cosine_without_massive


@dataclass(frozen=True, kw_only=True)
class TokenTrace:
    """One token of the first context, in front of each layer of a stack and behind the last."""

    stack: str
    position: int
    name: str  # its text, or its id where there is no tokenizer
    cosines: tuple[float, ...]  # mean cosine of its direction with those of the other tokens
    lengths: tuple[float, ...]  # of the token in the stream, over the median of its context


@dataclass(frozen=True, kw_only=True)
class LayerTrace:
    """One layer."""

    layer: int
    stack: str
    attention: AttentionTrace
    mlp: MlpTrace
    norm: NormTrace
    metrics: Mapping[str, float]
    heads: tuple[HeadTrace, ...]
    directions: DirectionTrace


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """How well predictions and measurements go together; None where there are too few."""

    pearson: float | None
    spearman: float | None
    sign: float | None  # share of equal signs
    mean_error: float | None  # mean of |predicted - measured|
    n: int


@dataclass(frozen=True, kw_only=True)
class ClosureAgreement:
    """The agreement of one closure."""

    layers: Agreement
    heads: Agreement
    sharpness: Agreement  # over heads


@dataclass(frozen=True, kw_only=True)
class AgreementReport:
    """Of the default closure, and of each."""

    closure: str
    held_out: bool  # fitted and judged on different contexts
    pearson: float | None
    spearman: float | None
    sign: float | None
    per_closure: Mapping[str, ClosureAgreement]
    simulated: Agreement


@dataclass(frozen=True, kw_only=True)
class DirectionAgreement:
    """How well one closure predicts what attention does to directions."""

    layers: Agreement
    heads: Agreement
    clear_heads: Agreement  # those whose measured share is beyond 0.01


@dataclass(frozen=True, kw_only=True)
class DirectionReport:
    """Closures for directions, with the ceiling ("itself") and what a constant guess gets."""

    per_closure: Mapping[str, DirectionAgreement]
    majority_sign: float | None  # share of the commoner sign among clear heads
    by_size: float | None  # correlation over heads with minus the size of the head's output


@dataclass(frozen=True, kw_only=True)
class SelfCheck:
    """What guards the measurement."""

    max_logit_difference: float  # with and without hooks
    max_head_sum_error: float  # of heads against the attention output, relative
    dtype: str
    mask: Mapping[str, str]  # by stack
    seeds: Mapping[str, int]
    versions: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class ReplayTrace:
    """The flow of the layers' own weights from the real first states, beside the real stream."""

    stack: str
    relative_error: tuple[float, ...]  # |flow - real| / |real| after each layer
    cosine: tuple[float, ...]  # mean cosine of tokens, flow and real
    log_spread: tuple[float, ...]  # ln of the mean squared pair distance of the flow
    real_log_spread: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class Trace(Result):
    """A traced model."""

    KIND: ClassVar[str] = "trace"

    model: ModelInfo
    n_tokens: int
    n_contexts: int
    context: int
    layers: tuple[LayerTrace, ...]
    agreement: AgreementReport  # of raw distances
    direction_agreement: DirectionReport
    replay: tuple[ReplayTrace, ...]
    energy: Mapping[str, str]  # by stack: the course of the interaction energy over depth
    twin: "Trace | None"
    self_check: SelfCheck
    cost: Cost
    flags: tuple[str, ...]
    mechanisms: Mechanisms | None = None  # where they were asked for
    tokens: tuple[TokenTrace, ...] = ()  # where they were asked for

    # The modules that describe a trace stand on this one, so they are imported when needed.

    def summary(self) -> str:
        """Return what layers do and how well that was predicted; then mechanisms, if measured."""
        from orbitlens.tracing.words import trace_summary

        return trace_summary(self)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return a row for each part of each layer: "attention", "mlp", "norm", "head 3"."""
        from orbitlens.tracing.views import part_rows

        return data_frame(part_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        from orbitlens.tracing.views import agreement_table, direction_table, raw_table

        return [direction_table(self), raw_table(self), agreement_table(self)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        from orbitlens.tracing.views import trace_figure

        return trace_figure(self, go)
