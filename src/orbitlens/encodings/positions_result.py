"""The result of `positions`: what weights say of the encoding, what the config says, and losses.

Enters: nothing (plain data). Leaves: frozen dataclasses.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.encodings.evidence import Found, LayerPositions
from orbitlens.encodings.reach_result import Reach
from orbitlens.encodings.tables import TableReading
from orbitlens.encodings.trial import HypothesisTrial
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.running.info import Cost, ModelInfo

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Repair:
    """What would make the model turn its coordinates as they were trained."""

    by_rows: tuple[int, ...]  # layers whose queries and keys are reordered
    unrotated: tuple[int, ...]  # layers that should not be rotated, and are
    rotated: tuple[int, ...]  # layers that should be, and are not
    order: tuple[int, ...]  # of a head's coordinates, in every such layer; empty: nothing to do
    base: float | None  # with which the loss is lower than with the config's
    confirmed: bool | None  # by a lower loss; None: not run
    written_to: str | None = None
    bases_alike: tuple[float, ...] = ()  # others that the loss does not tell from `base`
    is_latent: bool = False  # rows of q_pe and k_pe alone, of latent attention


@dataclass(frozen=True, kw_only=True, repr=False)
class Positions(Result):
    """What a model's weights say of its position encoding."""

    KIND: ClassVar[str] = "positions"

    model: ModelInfo
    layers: tuple[LayerPositions, ...]
    table: TableReading | None  # of absolute positions
    trials: tuple[HypothesisTrial, ...]  # losses of hypotheses; empty: not run
    repair: Repair | None  # None: nothing disagrees
    text: str | None  # what losses were measured on
    n_tokens: int
    cost: Cost
    flags: tuple[str, ...]
    reach: Reach | None = None  # how far a context reaches; None: not asked

    def disagreeing(self) -> Iterator[LayerPositions]:
        """Yield the layers whose weights say something else than the config."""
        return (layer for layer in self.layers if layer.agrees is False)

    def answered(self) -> Iterator[LayerPositions]:
        """Yield the layers whose weights say something."""
        return (layer for layer in self.layers if layer.found is not Found.UNKNOWN)

    def summary(self) -> str:
        """Return the verdict, what confirms it, and what to do, in sentences."""
        from orbitlens.encodings.words import summary_sentences

        return " ".join(summary_sentences(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a layer."""
        return data_frame(layer_rows(self))

    def _tables(self) -> Sequence[HtmlTable]:
        rows = list(layer_rows(self))
        columns = ("layer", "config", "weights", "nats", "margin", "balance")
        layers = [[row[name] for name in columns] for row in rows]
        tables = [HtmlTable(caption="Layers", columns=list(columns), rows=layers)]
        if self.trials:
            losses = [[t.name, t.loss, t.difference, t.deviation] for t in self.trials]
            names = ["hypothesis", "loss", "difference", "standard error"]
            tables.append(HtmlTable(caption="Losses, nats a token", columns=names, rows=losses))
        return tables

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return the evidence of every layer, by kind of mark."""
        names = [str(layer.layer) for layer in self.layers]
        kinds = ("energy", "opposite", "product", "balance", "crossed")
        drawn = go.Figure(
            [
                go.Bar(name=kind, x=names, y=[getattr(each.marks, kind) for each in self.layers])
                for kind in kinds
            ]
        )
        drawn.update_layout(barmode="stack", title="Evidence for the likeliest rotation, in nats")
        drawn.update_xaxes(type="category", title="layer")
        drawn.update_yaxes(title="nats against no rotation")
        return drawn


def layer_rows(result: Positions) -> Iterator[dict[str, object]]:
    """Yield one row a layer: what the config and the weights say, and how strongly."""
    for each in result.layers:
        yield {
            "stack": each.stack,
            "layer": each.layer,
            "d_head": each.d_head,
            "config": "not rotary" if each.configured is None else str(each.configured),
            "weights": each.found.value if each.rotated is None else str(each.rotated),
            "agrees": each.agrees,
            "likeliest": str(each.best),
            "nats": each.nats,
            "margin": each.margin,
            "probability": each.probability,
            "energy": each.marks.energy,
            "opposite": each.marks.opposite,
            "product": each.marks.product,
            "rows": each.marks.balance,
            "crossed": each.marks.crossed,
            "balance": each.balance,
            "spread": each.spread,
            "p_value": each.p_value,
            "like_others": each.likeness,
            "leading": each.is_leading,
        }
