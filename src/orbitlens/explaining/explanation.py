"""Explanation: why a model predicts what it does for one sequence, as far as attention tells.

Enters: graphs of heads and the outcome of a search. Leaves: a result.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.draw.figure import ZERO
from orbitlens.explaining.graph import CausalGraph
from orbitlens.explaining.search import TokenSet
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.plotting import GATHER
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True, repr=False)
class Explanation(Result):
    """Why a model predicts what it does for one sequence, as far as its attention tells."""

    KIND: ClassVar[str] = "explanation"

    prediction: int  # class or token id
    target: int  # the token whose prediction it is
    graphs: dict[int, CausalGraph]  # by head of the last layer
    tokens: TokenSet  # masking these changes the prediction; empty where no set was found
    changed_to: int | None  # what is predicted then
    calls: int  # of the model: predictions, and one for attention
    samples: int
    alpha: float
    caveats: tuple[str, ...]

    def summary(self) -> str:
        """Return what masking changes, in a sentence, and what the graphs rest on."""
        start = f"The model predicts {self.prediction} at token {self.target}; "
        n_edges = sum(len(graph.edges) for graph in self.graphs.values())
        rest = f"{len(self.graphs)} heads of the last layer have graphs, of {n_edges} edges in all."
        if not self.tokens:
            return (
                f"{start}no set of tokens that was tried changes that ({self.calls} calls). {rest}"
            )
        names = ", ".join(str(token) for token in self.tokens)
        what = f"token {names}" if len(self.tokens) == 1 else f"tokens {names}"
        return (
            f"{start}masking {what} changes it to {self.changed_to} ({self.calls} calls of the "
            f"model). {rest}"
        )

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row an edge: the head, two tokens, and the marks at them."""
        return data_frame(self._edge_rows())

    def _edge_rows(self) -> Iterator[dict[str, object]]:
        for head, graph in self.graphs.items():
            for edge in graph.edges:
                marks = {"at_first": edge.at_first.value, "at_second": edge.at_second.value}
                yield {"head": head, "first": edge.first, "second": edge.second, **marks}

    def _tables(self) -> Sequence[HtmlTable]:
        edges = [[head, *map(str, graph.edges)] for head, graph in self.graphs.items()]
        widest = max((len(row) for row in edges), default=1)
        caveats = [[number + 1, text] for number, text in enumerate(self.caveats)]
        return [
            HtmlTable(caption="Edges", columns=["head", *[""] * (widest - 1)], rows=edges),
            HtmlTable(caption="What to keep in mind", columns=["", ""], rows=caveats),
        ]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return in how many heads two tokens are adjacent."""
        nodes = sorted({node for graph in self.graphs.values() for node in graph.nodes})
        counts = Counter(pair for graph in self.graphs.values() for pair in graph.pairs)
        shown = go.Heatmap(
            z=[[counts[frozenset((a, b))] if a != b else None for b in nodes] for a in nodes],
            x=[str(node) for node in nodes], y=[str(node) for node in nodes], xgap=2, ygap=2,
            zmin=0, zmax=max(len(self.graphs), 1), colorscale=[[0, ZERO], [1, GATHER]],
            hovertemplate="tokens %{y} and %{x}: %{z} heads<extra></extra>",
        )  # fmt: skip
        drawn = go.Figure(shown)
        drawn.update_layout(title="Heads in whose graph two tokens are adjacent")
        drawn.update_xaxes(type="category", title="token")
        drawn.update_yaxes(type="category", autorange="reversed", title="token")
        return drawn
