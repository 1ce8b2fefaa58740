"""Report -> files for other tools: a CSV for each kind of table, a PNG for each section.

Enters: the models of a report and a folder. Leaves: files, each written whole or not at all.
"""

import csv
import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from orbitlens.draw.figure import Figure, check_packages
from orbitlens.files import write_result
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table
from orbitlens.reporting.sections import SECTIONS
from orbitlens.reporting.sections.compare import comparison

# --- tables ------------------------------------------------------------------------------------


def write_csv(models: Sequence[ModelReport], folder: Path) -> list[Path]:
    """Write one file for each kind of table, with the model as first column; return their paths.

    Raises:
        InputError: a file cannot be written.
    """
    files = []
    for name, text in csv_texts(models).items():
        files.append(folder / f"{name}.csv")
        write_result(files[-1], text.encode("utf-8"))
    return files


def csv_texts(models: Sequence[ModelReport]) -> dict[str, str]:
    """Return the text of every CSV file by its name."""
    by_name: dict[str, list[tuple[str, Table]]] = {}
    for model in models:
        for table in all_tables(model):
            by_name.setdefault(table.name, []).append((model.name, table))
    compared = comparison(models)
    return {"models": _csv(list(compared.columns), compared.rows)} | {
        name: _csv(*_merged(tables)) for name, tables in by_name.items()
    }


def all_tables(model: ModelReport) -> list[Table]:
    """Return every table of a model that has rows."""
    return [table for section in SECTIONS for table in section.tables(model) if table.rows]


def _merged(tables: list[tuple[str, Table]]) -> tuple[list[str], list[Row]]:
    """Return the columns that any model has, and all rows; what a model lacks is empty."""
    columns = list(dict.fromkeys(name for _, table in tables for name in table.columns))
    rows: list[Row] = []
    for model, table in tables:
        for row in table.rows:
            values = dict(zip(table.columns, row, strict=True))
            rows.append([model, *(values.get(name) for name in columns)])
    return ["model", *columns], rows


def _csv(columns: list[str], rows: Sequence[Row]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow([harmless(name) for name in columns])
    writer.writerows([[harmless(value) for value in row] for row in rows])
    return stream.getvalue()


def harmless(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula.

    >>> harmless("=1+1"), harmless(-1.5)
    ("'=1+1", -1.5)
    """
    text = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if text else value


# --- pictures ----------------------------------------------------------------------------------


def write_png(models: Sequence[ModelReport], folder: Path) -> list[Path]:
    """Write a picture of every section of every model; return their paths.

    Raises:
        InputError: a file cannot be written.
        MissingPackageError: matplotlib is not installed.
    """
    check_packages()
    from orbitlens.draw.figure_png import png_of

    files = []
    for k, model in enumerate(models):
        for figure in section_figures(model):
            files.append(folder / f"{file_name(model.name, k)}-{figure.name}.png")
            write_result(files[-1], png_of(figure))
    return files


def section_figures(model: ModelReport) -> Iterator[Figure]:
    """Go through the sections that have a picture, each as a figure with all its charts."""
    for section in SECTIONS:
        charts = (section.pictures or section.charts)(model)
        if not charts:
            continue
        tall = charts[0].kind in {"heads", "orbits"}
        yield Figure(
            name=section.key,
            title=f"{model.name}: {section.title}",
            caption=section.lead.partition(". ")[0].rstrip(".") + ".",  # the rest is for pages
            panels=[chart.panel for chart in charts],
            n_columns=min(section.columns, len(charts)),
            height=4.8 if tall else 2.7 if len(charts) > section.columns else 3.6,
        )


def file_name(name: str, k: int) -> str:
    """Return a model's name as part of a file's name.

    >>> file_name("a model/1", 0)
    'a-model-1'
    """
    return re.sub("[^A-Za-z0-9._-]+", "-", name).strip("-.") or f"model-{k + 1}"
