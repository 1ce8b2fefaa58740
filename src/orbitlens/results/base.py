"""Result: what every verb returns. It can be read, tabulated, drawn, saved and loaded.

Enters: fields of a frozen dataclass. Leaves: sentences, a table, a figure, a file. A saved result
is the JSON object of its fields with three more: `orbitlens`, the version that wrote it; `kind`,
which result it is; and `format`, a number that grows when older readers could no longer read it.
"""

import textwrap
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from orbitlens.errors import InputError, MissingPackageError, ResultError
from orbitlens.files import read_json, remedy, write_whole
from orbitlens.results.codec import decode, dumps, encode
from orbitlens.results.html import HtmlTable, framed
from orbitlens.results.plotting import LOOK, graph_objects

if TYPE_CHECKING:
    import pandas

R = TypeVar("R", bound="Result")  # not Self: beartype refuses that in methods
LARGEST_FILE = 512_000_000  # bytes of a saved result
WIDTH = 100  # characters of a line of the repr


class Result(ABC):
    """The base of results. A child is a dataclass with frozen=True, kw_only=True, repr=False.

    It says its `KIND`, and defines `summary`, `to_pandas`, `_tables` and `_figure`.
    """

    KIND: ClassVar[str]  # its name in files
    FORMAT: ClassVar[int] = 1  # of its files
    DERIVED: ClassVar[tuple[str, ...]] = ()  # properties and methods that its files state too

    @abstractmethod
    def summary(self) -> str:
        """Return what the numbers say, in sentences."""

    @abstractmethod
    def to_pandas(self) -> "pandas.DataFrame":
        """Return the numbers as a tidy table."""

    @abstractmethod
    def _tables(self) -> Sequence[HtmlTable]:
        """Return the tables that a notebook shows."""

    @abstractmethod
    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        """Return the figure, made with plotly's `graph_objects`."""

    def plot(self) -> Any:  # noqa: ANN401 - plotly is optional, and ships no types
        """Return the result as a plotly figure, which notebooks show by themselves.

        Raises:
            MissingPackageError: plotly is not installed.
        """
        return self._figure(graph_objects()).update_layout(**LOOK)

    def __repr__(self) -> str:
        """Return the beginning of the summary, in two lines at most, and what to ask next."""
        name = type(self).__name__
        text = textwrap.shorten(f"{name}: {self.summary()}", 2 * WIDTH - 20, placeholder=" ...")
        lines = textwrap.wrap(text, WIDTH, max_lines=2, placeholder=" ...")
        return "\n".join([*lines, "See summary(), to_pandas(), plot(), save(path)."])

    def _repr_html_(self) -> str:
        """Return summary, tables and, where plotly is installed, the figure as notebooks do it."""
        return framed(self.summary(), self._tables()) + self._figure_html()

    def _figure_html(self) -> str:
        try:
            figure = self.plot()
        except MissingPackageError:
            return ""
        # By plotly's own setting of the day, which puts its script into a notebook once; outside
        # of one it returns nothing.
        html: str = figure._repr_mimebundle_().get("text/html", "")
        return html

    # --- files -------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain data: what `save` writes."""
        header = {"orbitlens": version("orbitlens"), "kind": self.KIND, "format": self.FORMAT}
        return header | encode(self)

    @classmethod
    def from_json(cls: type[R], data: object, *, name: str = "the data") -> R:
        """Return the result that `to_json` described; `name` is for messages.

        Raises:
            ResultError: the data are of another kind or a newer format, or do not fit.
        """
        checked = _checked(cls, data, name)
        try:
            result: R = decode(cls, checked)
            result.summary()  # needs fields that fit each other, not only their types
            result._tables()
        except (ResultError, LookupError, ArithmeticError, ValueError, AssertionError) as error:
            own = isinstance(error, ResultError)
            what = str(error) if own else f"its parts do not fit each other ({error!r})."
            message = f"{name}: this {cls.KIND} is damaged: {what} Make it anew."
            raise ResultError(message) from error
        return result

    def save(self, path: str | Path) -> Path:
        """Write the result as JSON, whole or not at all, and return the file.

        Raises:
            InputError: it cannot be written there.
        """
        file = Path(path).resolve()
        try:
            write_whole(file, (dumps(self.to_json()) + "\n").encode())
        except OSError as error:
            raise InputError(
                f"{path}: the result cannot be written ({error}). {remedy(error)}"
            ) from error
        return file

    @classmethod
    def load(cls: type[R], path: str | Path) -> R:
        """Return the result that `save`, or `--json` of a command, wrote into a file.

        Raises:
            ResultError: there is no such file, or it is not such a result.
        """
        return cls.from_json(_read(cls, path), name=str(path))


def _read(kind: type[Result], path: str | Path) -> object:
    expected = f"Expected a file written by {kind.__name__}.save."
    try:
        return read_json(Path(path), LARGEST_FILE)
    except OSError as error:
        raise ResultError(f"{path}: cannot be read ({error.strerror}). {expected}") from error
    except UnicodeDecodeError as error:
        raise ResultError(f"{path}: this is not text ({error.reason}). {expected}") from error
    except ValueError as error:
        raise ResultError(f"{path}: this is not JSON ({error}). {expected}") from error


def _checked(kind: type[Result], data: object, name: str) -> dict[str, Any]:
    """Return data whose header says that they are a result of this kind.

    Raises:
        ResultError: it says something else, or there is none.
    """
    if not isinstance(data, dict) or not isinstance(data.get("kind"), str):
        raise ResultError(
            f"{name}: this is no saved result: no field `kind` says which one. Expected "
            f'"{kind.KIND}", as {kind.__name__}.save writes it.'
        )
    if data["kind"] != kind.KIND:
        raise ResultError(
            f"{name}: this is a saved {data['kind']!r}, expected {kind.KIND!r}. Load it with the "
            "class of that result."
        )
    number = data.get("format")
    if not isinstance(number, int) or not 1 <= number <= kind.FORMAT:
        raise ResultError(
            f"{name}: this {kind.KIND} has format {number!r}, written by orbitlens "
            f"{data.get('orbitlens')!r}; this one reads formats 1 to {kind.FORMAT}. "
            "Install a newer orbitlens, or save the result again with this one."
        )
    return data
