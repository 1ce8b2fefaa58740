"""Report: everything about one or more models, as one result.

Enters: what was computed of models. Leaves: a `Report`: a page in a notebook, files, tables, JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from orbitlens.errors import InputError, ResultError
from orbitlens.files import write_whole
from orbitlens.reporting.compact import fold_reasons, unfold_reasons
from orbitlens.reporting.data import ModelReport, ReportSettings
from orbitlens.reporting.page import render
from orbitlens.reporting.sections.compare import comparison
from orbitlens.reporting.sections.heads import every_head
from orbitlens.reporting.shapes import check_shapes
from orbitlens.results.base import Result
from orbitlens.results.codec import dumps
from orbitlens.results.html import HtmlTable, frame

if TYPE_CHECKING:
    import pandas

HEIGHT = 760  # of the frame in a notebook, in pixels
PAGES = (".html", ".htm")
MISFITS = (KeyError, IndexError, ValueError, AssertionError, ZeroDivisionError, OverflowError)
MARK = 'type="application/json" id="report-data">'


@dataclass(frozen=True, kw_only=True, repr=False)
class Report(Result):
    """All models of a report; a notebook shows the page itself."""

    KIND: ClassVar[str] = "report"
    FORMAT: ClassVar[int] = 4

    models: tuple[ModelReport, ...]
    settings: ReportSettings
    versions: Mapping[str, str]

    @cached_property
    def html(self) -> str:
        """The page: one HTML file that needs nothing else."""
        return render(self.models, self.versions, json.loads(dumps(self.to_json())))

    def summary(self) -> str:
        """Return the sentences of each model, its name in front where there are several."""
        several = len(self.models) > 1
        blocks = [[f"{m.name}:"] * several + list(m.words) for m in self.models]
        return "\n".join(line for block in blocks for line in block)

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a head, with the model's name and what its scan says."""
        import pandas

        frames = []
        for model in self.models:
            if model.scan is not None:
                table = every_head(model)
                one = pandas.DataFrame([list(row) for row in table.rows], columns=table.columns)
                one.insert(0, "model", model.name)
                frames.append(one)
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    def _tables(self) -> Sequence[HtmlTable]:
        table = comparison(self.models)
        return [HtmlTable(caption=table.caption, columns=table.columns, rows=table.rows)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        scans = [model.scan for model in self.models if model.scan is not None]
        if not scans:
            raise InputError("no model of this report was scanned, so there is no map to plot.")
        return scans[0]._figure(go)

    def _repr_html_(self) -> str:
        """Return the page in a frame."""
        return frame(self.html, HEIGHT)

    # --- files ---------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data; the clauses of certificates are written once a model.

        The sentences of each model are there for readers of the file; they are not read again.
        """
        data = super().to_json()
        for model, own in zip(data["models"], self.models, strict=True):
            model["words"] = list(own.words)
            model["clauses"] = [] if model["scan"] is None else fold_reasons(model["scan"])
        return data

    @classmethod
    def from_json(cls, data: object, *, name: str = "the data") -> "Report":
        """Return the report that `to_json` described; `name` is for messages.

        Raises:
            ResultError: the data are of another kind or a newer format, or do not fit.
        """
        whole = json.loads(json.dumps(data))  # unfolding changes it
        if isinstance(whole, dict) and whole.get("kind") == cls.KIND:
            _unfold(whole, name)
        loaded: Report = super().from_json(whole, name=name)
        _check(loaded, name)
        return loaded

    def save(self, path: str | Path) -> Path:
        """Write the page (.html) or the data (any other ending), whole; return the file.

        Raises:
            InputError: it cannot be written there.
        """
        file = Path(path).resolve()
        if file.suffix.lower() not in PAGES:
            return super().save(file)
        try:
            write_whole(file, self.html.encode("utf-8"))
        except OSError as error:
            raise InputError(f"{path}: the result cannot be written ({error}).") from error
        return file

    @classmethod
    def load(cls, path: str | Path) -> "Report":
        """Return the report of a page or of a JSON file.

        Raises:
            ResultError: there is no such file, or it is no report.
        """
        if Path(path).suffix.lower() not in PAGES:
            loaded: Report = super().load(path)
            return loaded
        try:
            text = Path(path).read_text(encoding="utf-8")
            data = json.loads(text.partition(MARK)[2].partition("</script>")[0])
        except (OSError, ValueError) as error:
            raise ResultError(
                f"{path}: no report can be read from this page ({error}). Expected a page that "
                "Report.save wrote."
            ) from error
        return cls.from_json(data, name=str(path))


def _check(loaded: Report, name: str) -> None:
    """Refuse data of the right types whose parts do not fit each other, by drawing the page.

    Raises:
        ResultError: they do not.
    """
    damaged = f"{name}: this report is damaged: its parts do not fit each other"
    if not loaded.models:
        raise ResultError(f"{damaged}: it has no model. Make it anew.")
    try:
        for model in loaded.models:
            check_shapes(model)
        loaded.html  # noqa: B018 - kept: it is what the data are read for
    except ResultError as error:
        raise ResultError(f"{damaged}: {error} Make it anew.") from error
    except MISFITS as error:  # of numbers and names that a section looks up in another
        raise ResultError(f"{damaged} ({error!r}). Make it anew.") from error


def _unfold(data: dict[str, Any], name: str) -> None:
    """Write the reasons of certificates in words, in place.

    Raises:
        ResultError: they are not where they should be.
    """
    try:
        for model in data["models"]:
            if model["scan"] is not None:
                unfold_reasons(model["scan"], model["clauses"])
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ResultError(
            f"{name}: this report is damaged: its certificates cannot be read. Make it anew."
        ) from error
