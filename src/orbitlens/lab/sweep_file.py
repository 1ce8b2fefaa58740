"""A sweep file (TOML) -> the settings it asks for, checked before anything is trained.

Enters: a file. Leaves: a `Sweep`: cells (settings, a label, a baseline) and seeds. Its parts:

    seeds = 5                      a number, or a list of seeds
    [base]                         settings of all runs: of `RunConfig`, or options of the task
    [grid]                         lists of values; every combination is a cell
    [baseline]                     values of some of the grid's settings: a cell is compared with
                                   the cell that has these values and is otherwise the same
    [[variants]]                   named changes, each combined with the whole grid; `against`
                                   names the variant it is compared with
"""

import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError
from orbitlens.files import read_bounded
from orbitlens.lab.recipe import check_run
from orbitlens.lab.run import RunConfig, run_config

LARGEST_SWEEP = 1_000_000  # bytes
PARTS = ("seeds", "base", "grid", "baseline", "variants")


@dataclass(frozen=True, kw_only=True)
class SweepCell:
    """One setting of a sweep, to be run with every seed."""

    label: str
    settings: dict[str, Any]
    changed: dict[str, Any]  # what tells it from the other cells
    baseline: str | None  # the label of the cell it is compared with

    def config(self, seed: int) -> RunConfig:
        """Return the run with one seed."""
        return run_config(self.settings | {"seed": seed})


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Cells times seeds."""

    cells: tuple[SweepCell, ...]
    seeds: tuple[int, ...]


def read_sweep(file: Path, changes: Mapping[str, Any] | None = None) -> Sweep:
    """Read and check a sweep file; `changes` take the place of settings in [base].

    Raises:
        InputError: with the line and the key, where something is unknown or does not fit.
    """
    try:
        text = read_bounded(file, LARGEST_SWEEP).decode("utf-8")
        data = tomllib.loads(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: this cannot be read ({error}).") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{file}: this is not TOML: {error}.") from error
    return _Reader(file, text, data, dict(changes or {})).sweep()


class _Reader:
    """Reads one file; knows lines, for errors."""

    def __init__(
        self, file: Path, text: str, data: dict[str, Any], changes: dict[str, Any]
    ) -> None:
        self.file, self.text, self.data = file, text, data
        self._check_parts()
        self.base = self._placed(self.data.get("base", {})) | changes
        self.grid: dict[str, Any] = self.data.get("grid", {})
        self.variants: list[dict[str, Any]] = self.data.get("variants", [])
        self.baseline: dict[str, Any] = self.data.get("baseline", {})

    def sweep(self) -> Sweep:
        """Return the sweep, each run of it checked."""
        self._check_grid()
        self._check_variants()
        self._check_settings()
        cells = tuple(self._cells())
        self._check_cells(cells)
        return Sweep(cells=cells, seeds=self._seeds())

    # --- what the parts mean ---

    def _seeds(self) -> tuple[int, ...]:
        seeds: int | list[Any] = self.data.get("seeds", 1)
        numbers = range(seeds) if isinstance(seeds, int) else seeds
        if not numbers:
            raise self._error("seeds", None, "expected a number from 1 on, or a list of seeds")
        if not all(isinstance(seed, int) and seed >= 0 for seed in numbers):
            raise self._error("seeds", None, "expected whole numbers from 0 on")
        return tuple(dict.fromkeys(numbers))

    def _placed(self, settings: dict[str, Any]) -> dict[str, Any]:
        """Read paths as relative to the sweep file."""
        name = settings.get("file")
        if not isinstance(name, str):
            return settings
        return settings | {"file": str(self.file.parent / name)}

    def _cells(self) -> Iterator[SweepCell]:
        for variant in self.variants or [{}]:
            own = self._placed({k: v for k, v in variant.items() if k not in {"name", "against"}})
            for values in itertools.product(*self.grid.values()):
                chosen = dict(zip(self.grid, values, strict=True))
                yield SweepCell(
                    label=_label(variant.get("name"), chosen),
                    settings=self.base | own | chosen,
                    changed=({"variant": variant["name"]} if variant else {}) | chosen,
                    baseline=self._baseline(variant, chosen),
                )

    def _baseline(self, variant: dict[str, Any], chosen: dict[str, Any]) -> str | None:
        other_name = variant.get("against", variant.get("name"))
        other = _label(other_name, chosen | self.baseline)
        return None if other == _label(variant.get("name"), chosen) else other

    # --- checks ---

    def _check_parts(self) -> None:
        for part, value in self.data.items():
            if part not in PARTS:
                raise self._error(part, None, f"unknown; known: {', '.join(PARTS)}")
            wanted = {"seeds": (int, list), "variants": (list,)}.get(part, (dict,))
            ok = isinstance(value, wanted) and not isinstance(value, bool)
            if part == "variants" and ok:
                ok = all(isinstance(variant, dict) for variant in value)
            if not ok:
                raise self._error(part, None, "expected a table; see the documentation")

    def _check_grid(self) -> None:
        for key, values in self.grid.items():
            if not isinstance(values, list) or not values:
                raise self._error(key, "grid", "expected a list of values")
        for key, value in self.baseline.items():
            if value not in self.grid.get(key, []):
                known = f"one of {self.grid[key]}" if key in self.grid else "a setting of [grid]"
                raise self._error(key, "baseline", f"{value!r} was given; expected {known}")

    def _check_variants(self) -> None:
        names = [variant.get("name") for variant in self.variants]
        for number, variant in enumerate(self.variants):
            place = ("name", "variants", number)
            name = variant.get("name")
            if names.count(name) > 1 or type(name) is not str:
                raise self._error(*place[:2], "expected a name of its own", number)
            if variant.get("against", name) not in names:
                known = f"expected the name of a variant: {', '.join(map(str, names))}"
                raise self._error("against", "variants", known, number)

    def _check_settings(self) -> None:
        """Try each setting by itself, so that an error has a line."""
        task = {"task": self.base["task"]} if "task" in self.base else {}
        for key, value in self.base.items():
            self._try({key: value} | task, key, "base")
        for key, values in self.grid.items():
            for value in values:
                own = {} if key == "task" else task
                self._try(own | {key: value}, key, "grid")
        for number, variant in enumerate(self.variants):
            settings = {k: v for k, v in variant.items() if k not in {"name", "against"}}
            own = task | {k: v for k, v in settings.items() if k == "task"}
            for key, value in settings.items():
                self._try(own | {key: value}, key, "variants", number)

    def _try(self, settings: dict[str, Any], key: str, part: str, number: int = 0) -> None:
        try:
            run_config(settings)
        except InputError as error:
            raise self._error(key, part, str(error), number) from error

    def _check_cells(self, cells: Sequence[SweepCell]) -> None:
        labels = {cell.label for cell in cells}
        for cell in cells:
            try:
                check_run(cell.config(0))
            except InputError as error:
                raise InputError(f"{self.file}: {cell.label}: {error}") from error
            if cell.baseline is not None and cell.baseline not in labels:
                raise InputError(
                    f"{self.file}: {cell.label}: there is no cell {cell.baseline!r} to compare it "
                    "with."
                )

    def _error(self, key: str, part: str | None, what: str, number: int = 0) -> InputError:
        line = line_of(self.text, key, part, number)
        place = f"[{part}] {key}" if part else key
        return InputError(f"{self.file}, line {line}: {place}: {what}")


def _label(name: str | None, chosen: Mapping[str, Any]) -> str:
    parts = [name] if name else []
    return " ".join(parts + [_short(key, value) for key, value in chosen.items()]) or "all"


def _short(key: str, value: object) -> str:
    """Return a value that speaks for itself, or with its name where it does not."""
    return value if isinstance(value, str) else f"{key}={value}".replace(" ", "")


def line_of(text: str, key: str, part: str | None, number: int = 0) -> int:
    """Return the line on which a key of a part of a TOML file stands; of the part, or 1."""
    current, seen, begins = None, -1, 1
    for n, line in enumerate(text.splitlines(), start=1):
        header = re.match(r"\s*\[+\s*([\w-]+)", line)
        if header:
            current = header[1]
            seen += current == part
            if current == part and (current != "variants" or seen == number):
                begins = n
            if part is None and current == key:
                return n
            continue
        inside = current == part and (part != "variants" or seen == number)
        if inside and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*[=.]", line):
            return n
    return begins
