"""Atlas: many models side by side, as a result that can be read, tabulated, drawn and saved."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.tidy import data_frame
from orbitlens.surveying.atlas_entry import AtlasEntry
from orbitlens.surveying.options import AtlasOptions

if TYPE_CHECKING:
    import pandas

Cell = str | int | float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class Atlas(Result):
    """Models in the order they were given; those that could not be read have their reason."""

    KIND: ClassVar[str] = "atlas"

    options: AtlasOptions
    entries: tuple[AtlasEntry, ...]

    @property
    def read(self) -> tuple[AtlasEntry, ...]:
        """The models that could be read."""
        return tuple(entry for entry in self.entries if entry.not_read is None)

    def rows(self) -> list[dict[str, Cell]]:
        """Return one row a model."""
        return [_row(entry) for entry in self.entries]

    def summary(self) -> str:
        """Return what the models have in common, in sentences built from their numbers."""
        return " ".join(_sentences(self))

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a model."""
        return data_frame(self.rows())

    def _tables(self) -> Sequence[HtmlTable]:
        rows = self.rows()
        columns = tuple(rows[0]) if rows else ()
        return [
            HtmlTable(
                caption="Models",
                columns=columns,
                rows=[tuple(_shown(row[name]) for name in columns) for row in rows],
            )
        ]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        figure = go.Figure()
        for entry in self.read:
            depth = [layer.depth for layer in entry.layers if layer.cosine_after is not None]
            cosine = [each.cosine_after for each in entry.layers if each.cosine_after is not None]
            if depth:
                figure.add_scatter(x=depth, y=cosine, name=entry.name, mode="lines+markers")
        return figure.update_layout(xaxis_title="depth", yaxis_title="mean cosine of tokens")


def _row(entry: AtlasEntry) -> dict[str, Cell]:
    model, cosines = entry.model, entry.cosines
    return {
        "model": entry.name,
        "family": None if model is None else model.family,
        "parameters": None if model is None else model.parameters,
        "layers": None if model is None else model.n_layers,
        "heads": entry.n_heads or None,
        "width": None if model is None else model.d_model,
        "encoding": None if model is None else model.position.value,
        "rotated by weights": entry.rotary_layers,
        "weights disagree": entry.disagreeing,
        "aligned": entry.share("aligned"),
        "opposed": entry.share("opposed"),
        "gathering layers": entry.gathering_layers,
        "C first": None if cosines is None else cosines[0],
        "C last": None if cosines is None else cosines[1],
        "massive": entry.n_massive,
        "tokens": entry.n_tokens,
        "MB read": None if entry.bytes_read is None else entry.bytes_read / 1e6,
        "seconds": entry.seconds,
        "why not": entry.not_read or entry.not_run,
    }


def _shown(value: Cell) -> str:
    if value is None:
        return "–"
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _sentences(atlas: Atlas) -> list[str]:
    read = atlas.read
    n_failed = len(atlas.entries) - len(read)
    run = [entry for entry in read if entry.n_tokens is not None]
    told = [f"{len(read)} of {len(atlas.entries)} models were read and {len(run)} of them run."]
    if n_failed:
        failed = [entry.name for entry in atlas.entries if entry.not_read is not None]
        told.append(f"Not read: {', '.join(failed[:5])}{' and others' if n_failed > 5 else ''}.")
    if read:
        shares = [(entry.share("aligned") or 0.0, entry.share("opposed") or 0.0) for entry in read]
        more = sum(opposed > aligned for aligned, opposed in shares)
        told.append(
            f"By their weights, more heads are opposed than aligned in {more} of {len(read)}; the "
            f"median share is {median(a for a, _ in shares):.0%} aligned and "
            f"{median(o for _, o in shares):.0%} opposed."
        )
    wrong = [entry.name for entry in read if entry.disagreeing]
    if wrong:
        told.append(f"Weights and config disagree on the rotation in {', '.join(wrong[:5])}.")
    ends = [entry.cosines for entry in run if entry.cosines is not None]
    if ends:
        up = sum(last > first for first, last in ends)
        told.append(
            f"From the first layer to the last, the mean cosine of tokens rises in {up} of "
            f"{len(ends)}; its median goes from {median(first for first, _ in ends):.2f} to "
            f"{median(last for _, last in ends):.2f}."
        )
    return told
