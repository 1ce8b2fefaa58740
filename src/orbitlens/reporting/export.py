"""Report JSON -> files for other tools: a CSV for each kind of table, a PNG for each section.

Enters: a report's JSON and a folder. Leaves: files, each written whole or not at all.
"""

import csv
import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError, MissingPackageError
from orbitlens.files import write_whole
from orbitlens.reporting.markup import Table
from orbitlens.reporting.sections import SUMMARY, summary_row
from orbitlens.reporting.tables import all_tables


def check_folder(folder: Path, option: str) -> None:
    """Make a folder ready for files; asked before a long run, so as not to fail after it.

    Raises:
        InputError: there can be no such folder, or nothing can be written into it.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {folder}: no folder can be made there ({error}).") from error
    if not os.access(folder, os.W_OK):
        raise InputError(f"{option} {folder}: files cannot be written there. Choose another.")


def check_pictures() -> None:
    """Complain where pictures cannot be drawn.

    Raises:
        MissingPackageError: matplotlib is not installed.
    """
    import importlib.util

    if importlib.util.find_spec("matplotlib") is None:
        raise MissingPackageError("--png needs matplotlib: pip install 'orbitlens[plot]'")


def write_csv(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write one file for each kind of table, with the model as first column; return their paths.

    Raises:
        InputError: a file cannot be written.
    """
    files = []
    for name, text in csv_texts(data).items():
        files.append(folder / f"{name}.csv")
        write_result(files[-1], text.encode("utf-8"))
    return files


def csv_texts(data: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of every CSV file by its name."""
    found: dict[str, list[tuple[str, Table]]] = {}
    for model in data["models"]:
        for table in all_tables(model):
            found.setdefault(table.name, []).append((model["name"], table))
    rows = [summary_row(model) for model in data["models"]]
    return {"models": _csv(list(SUMMARY), rows)} | {
        name: _csv(*_merged(tables)) for name, tables in found.items()
    }


def _merged(tables: list[tuple[str, Table]]) -> tuple[list[str], list[list[Any]]]:
    """Return the columns that any model has, and all rows; what a model lacks is empty."""
    columns = list(dict.fromkeys(name for _, table in tables for name in table.columns))
    rows = []
    for model, table in tables:
        for row in table.rows:
            values = dict(zip(table.columns, row, strict=True))
            rows.append([model, *(values.get(name) for name in columns)])
    return ["model", *columns], rows


def _csv(columns: list[str], rows: list[list[Any]]) -> str:
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([[harmless(value) for value in row] for row in rows])
    return stream.getvalue()


def harmless(value: object) -> object:
    """Return a value that no spreadsheet takes for a formula.

    >>> harmless("=1+1"), harmless(-1.5)
    ("'=1+1", -1.5)
    """
    text = isinstance(value, str) and value.startswith(("=", "+", "-", "@", "\t", "\r"))
    return f"'{value}" if text else value


def write_png(data: Mapping[str, Any], folder: Path) -> list[Path]:
    """Write a picture of every section of every model; return their paths.

    Raises:
        InputError: a file cannot be written.
        MissingPackageError: matplotlib is not installed.
    """
    check_pictures()
    from orbitlens.reporting.pictures import model_pictures

    files = []
    for k, model in enumerate(data["models"]):
        for section, image in model_pictures(model):
            files.append(folder / f"{file_name(model['name'], k)}-{section}.png")
            write_result(files[-1], image)
    return files


def file_name(name: str, k: int) -> str:
    """Return a model's name as part of a file's name.

    >>> file_name("a model/1", 0)
    'a-model-1'
    """
    return re.sub("[^A-Za-z0-9._-]+", "-", name).strip("-.") or f"model-{k + 1}"


def write_result(file: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        InputError: it cannot be written.
    """
    try:
        write_whole(file, content)
    except OSError as error:
        raise InputError(f"{file}: the result cannot be written ({error}).") from error
