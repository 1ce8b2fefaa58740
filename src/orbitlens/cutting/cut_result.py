"""The result of `cut`: what a model loses without each part, and which layers to take out.

Enters: nothing (plain data). Leaves: frozen dataclasses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.cutting.loss import LossKind
from orbitlens.cutting.measuring import PartLoss
from orbitlens.cutting.parts import KINDS
from orbitlens.cutting.rankings import LayerRanking
from orbitlens.errors import ResultError
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.running.info import Cost, ModelInfo
from orbitlens.running.removal import PartKind

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class ChosenCut:
    """Layers that are taken out together."""

    order: tuple[int, ...]  # in which they were taken out, each time the one that cost least
    losses: tuple[float, ...]  # on the contexts they were chosen by, after each
    whole_loss: float  # of the whole model, on contexts held out
    loss: float  # without all of them, on contexts held out
    deviation: float | None  # standard error of the difference between the two
    n_held_out: int
    written_to: str | None = None

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are taken out, in order of depth."""
        return tuple(sorted(self.order))

    @property
    def difference(self) -> float:
        """What the cut costs."""
        return self.loss - self.whole_loss


@dataclass(frozen=True, kw_only=True, repr=False)
class Cut(Result):
    """What a model loses without its parts."""

    KIND: ClassVar[str] = "cut"

    model: ModelInfo
    loss_kind: LossKind
    whole_loss: float
    parts: tuple[PartLoss, ...]
    rankings: tuple[LayerRanking, ...]  # of layers, without taking any out
    chosen: ChosenCut | None  # None: no share of layers to keep was given
    shares_weights: bool  # several layers have one set of weights
    text: str  # where inputs came from
    n_tokens: int
    n_contexts: int
    cost: Cost
    flags: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse rankings that leave out a layer."""
        n_layers = 1 + max((row.part.layer for row in self.of_kind(PartKind.LAYER)), default=-1)
        for ranking in self.rankings:
            if len(ranking.scores) < n_layers:
                raise ResultError(
                    f"the ranking {ranking.method!r} has {len(ranking.scores)} scores, expected "
                    f"one for each of {n_layers} layers."
                )

    def of_kind(self, kind: PartKind) -> list[PartLoss]:
        """Return the parts of one kind, in order."""
        return [row for row in self.parts if row.part.kind is kind]

    def summary(self) -> str:
        """Return what can go and what cannot, in sentences."""
        from orbitlens.cutting.words import summary_sentences

        return " ".join(summary_sentences(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a part; layers have the scores of every ranking."""
        return data_frame(part_rows(self))

    def mergekit(self) -> str:
        """Return the cut as a slice file of mergekit."""
        from orbitlens.cutting.recipes import mergekit_slices

        return mergekit_slices(self.model.path, self.model.n_layers, self._layers())

    def llama_cpp(self) -> str:
        """Return the layers as `llama-quantize --prune-layers` takes them."""
        return ",".join(map(str, self._layers()))

    def _layers(self) -> tuple[int, ...]:
        return () if self.chosen is None else self.chosen.layers

    def _tables(self) -> Sequence[HtmlTable]:
        columns = ["part", "loss", "difference", "standard error"]
        tables = []
        for kind in KINDS:
            rows = [
                [str(row.part), row.loss, row.difference, row.deviation]
                for row in self.of_kind(kind)
            ]
            if rows:
                tables.append(HtmlTable(caption=f"Without one {kind}", columns=columns, rows=rows))
        return tables

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return what each block costs, beside the map of heads where they were measured."""
        drawn = go.Figure()
        for kind in (PartKind.LAYER, PartKind.ATTENTION, PartKind.MLP):
            rows = self.of_kind(kind)
            if rows:
                drawn.add_trace(
                    go.Bar(
                        name=kind.value,
                        x=[str(row.part.layer) for row in rows],
                        y=[row.difference for row in rows],
                    )
                )
        drawn.update_layout(barmode="group", title=f"Without it: {self.loss_kind.value}")
        drawn.update_xaxes(type="category", title="layer")
        drawn.update_yaxes(title="loss more than the whole model's")
        return drawn


def part_rows(result: Cut) -> Iterator[dict[str, object]]:
    """Yield one row a part."""
    for row in result.parts:
        part = row.part
        scores = (
            {ranking.method: ranking.scores[part.layer] for ranking in result.rankings}
            if part.kind is PartKind.LAYER
            else {}
        )
        yield {
            "kind": part.kind.value,
            "layer": part.layer,
            "head": part.head,
            "loss": row.loss,
            "difference": row.difference,
            "deviation": row.deviation,
            "n_contexts": row.n_contexts,
            **scores,
        }
