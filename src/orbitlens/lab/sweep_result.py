"""SweepResult: all runs of a sweep, their summary over seeds, and the runs that failed.

Enters: what `run_sweep` collected. Leaves: sentences, a table with one row a setting, a figure of
losses with their intervals, a file.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.lab.run import RunResult
from orbitlens.lab.summary import Interval, Row
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A run that did not end."""

    label: str
    seed: int
    error: str


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepResult(Result):
    """All runs of a sweep, and their summary."""

    KIND: ClassVar[str] = "sweep"

    rows: tuple[Row, ...]  # one a setting; `summary` in files
    runs: tuple[RunResult, ...]
    failed: tuple[Failure, ...] = ()
    n_reused: int = 0  # runs that were in the folder already

    def summary(self) -> str:
        """Return the size of the sweep, its best setting and how the others compare."""
        failed = f", {len(self.failed)} failed" if self.failed else ""
        parts = [f"{_counted(self.rows, 'setting')}, {_counted(self.runs, 'run')}{failed}."]
        if self.rows:
            best = min(self.rows, key=lambda row: row.loss.mean)
            parts.append(
                f"Lowest loss: {best.label}, {written_interval(best.loss)} nats, "
                f"{best.accuracy.mean:.1%} right."
            )
        losses = [row.difference.loss for row in self.rows if row.difference is not None]
        if losses:
            resolved = [loss.mean for loss in losses if loss.excludes_zero]
            better = sum(mean < 0 for mean in resolved)
            parts.append(
                f"Beside their baselines {better} have a lower loss, {len(resolved) - better} a "
                f"higher one, and {len(losses) - len(resolved)} show no difference."
            )
        return " ".join(parts)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a setting: means, half-widths and differences from its baseline."""
        import pandas

        return pandas.DataFrame([_flat(row) for row in self.rows])

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; files call the rows `summary`."""
        data = super().to_json()
        return {"summary" if name == "rows" else name: value for name, value in data.items()}

    @classmethod
    def from_json(
        cls: "type[SweepResult]", data: object, *, name: str = "the data"
    ) -> "SweepResult":
        """Return the sweep that `to_json` described; `name` is for messages."""
        if isinstance(data, dict) and "summary" in data:
            data = {**data, "rows": data["summary"]}
        result: SweepResult = super().from_json(data, name=name)
        return result

    def _tables(self) -> Sequence[HtmlTable]:
        rows = [
            (
                row.label,
                row.loss.n,
                f"{row.accuracy.mean:.1%}",
                written_interval(row.loss),
                None if row.difference is None else written_interval(row.difference.loss),
                row.parameters,
            )
            for row in self.rows
        ]
        columns = ("setting", "seeds", "right", "loss", "loss - baseline", "parameters")
        return [HtmlTable(caption="Means over seeds", columns=columns, rows=rows)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        rows = self.rows[::-1]  # plotly counts upwards
        bars = go.Scatter(
            x=[row.loss.mean for row in rows],
            y=[row.label for row in rows],
            error_x={"array": [row.loss.half_width or 0.0 for row in rows]},
            mode="markers",
        )
        title = "Loss of each setting, mean and 95 % interval over seeds"
        return go.Figure(bars).update_layout(title=title, xaxis_title="loss, nats")


def written_interval(value: Interval) -> str:
    """Return a mean and its half-width.

    >>> written_interval(Interval(mean=1.5, half_width=0.25, n=3))
    '1.500 ± 0.250'
    """
    half = "" if value.half_width is None else f" ± {value.half_width:.3f}"
    return f"{value.mean:.3f}{half}"


def _counted(items: Sequence[object], name: str) -> str:
    return f"{len(items)} {name}" + ("" if len(items) == 1 else "s")


def _flat(row: Row) -> dict[str, Any]:
    intervals = {"loss": row.loss, "accuracy": row.accuracy, "token_accuracy": row.token_accuracy}
    intervals |= row.measured
    if row.difference is not None:
        intervals["loss_difference"] = row.difference.loss
        intervals["accuracy_difference"] = row.difference.accuracy
    flat: dict[str, Any] = {"setting": row.label, "n_seeds": row.loss.n}
    flat["baseline"] = None if row.difference is None else row.difference.baseline
    for name, value in intervals.items():
        flat |= {name: value.mean, f"{name}_half_width": value.half_width}
    return flat | {"parameters": row.parameters, "step_ms": row.step_ms}
