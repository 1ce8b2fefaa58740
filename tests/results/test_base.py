"""What every result can do, shown on a small one."""

import builtins
import json
from dataclasses import dataclass
from typing import ClassVar

import pandas
import pytest

import orbitlens
from orbitlens.errors import InputError, MissingPackageError, OrbitlensError, ResultError
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable, Shade


@dataclass(frozen=True, kw_only=True, repr=False)
class Count(Result):
    KIND: ClassVar[str] = "count"
    DERIVED: ClassVar[tuple[str, ...]] = ("total", "summary")

    numbers: tuple[int, ...]
    note: str = ""

    @property
    def total(self) -> int:
        return sum(self.numbers)

    def summary(self) -> str:
        return f"{len(self.numbers)} numbers.{self.note}"

    def to_pandas(self):
        return pandas.DataFrame({"number": self.numbers})

    def _tables(self):
        rows = [["one", Shade(self.note, "#FFF")], *(["n", n] for n in self.numbers)]
        return [HtmlTable(caption=self.note, columns=["", self.note], rows=rows)]

    def _figure(self, go):
        return go.Figure(go.Scatter(y=self.numbers))


class Other(Count):
    KIND: ClassVar[str] = "other"


def test_a_saved_result_is_loaded_again(tmp_path):
    result = Count(numbers=(1, 2, 3), note="é")
    file = result.save(tmp_path / "count.json")
    assert Count.load(file) == result
    assert Count.load(str(file)) == result
    assert result.to_json() == {
        "orbitlens": orbitlens.__version__,
        "kind": "count",
        "format": 1,
        "numbers": [1, 2, 3],
        "note": "é",
        "total": 6,
        "summary": "3 numbers.é",
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", 'no saved result.*Expected "count", as Count.save writes it'),
        ("[]", "no saved result"),
        ("null", "no saved result"),
        ('"count"', "no saved result"),
        ("{", "this is not JSON.*Expected a file written by Count.save"),
        ("", "this is not JSON"),
        ("[" * 100_000, "this is not JSON"),
        ('{"kind": "other", "format": 1}', "saved 'other', expected 'count'"),
        (
            '{"orbitlens": "9.0", "kind": "count", "format": 2}',
            "format 2, written by orbitlens '9.0'.*this one reads formats 1 to 1. Install a newer",
        ),
        ('{"kind": "count", "format": "one"}', "format 'one'"),
        ('{"kind": "count"}', "format None"),
        ('{"kind": "count", "format": 1}', "damaged: numbers is missing. Make it anew"),
        (
            '{"kind": "count", "format": 1, "numbers": [1, "x"]}',
            r'damaged: numbers\[1\]: expected a whole number, got "x"',
        ),
    ],
)
def test_what_is_not_such_a_result_is_refused(text, words, tmp_path):
    file = tmp_path / "file.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ResultError, match=words):
        Count.load(file)


def test_what_cannot_be_read_is_refused(tmp_path):
    (tmp_path / "binary").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(ResultError, match="not text"):
        Count.load(tmp_path / "binary")
    with pytest.raises(ResultError, match=r"cannot be read \(No such file"):
        Count.load(tmp_path / "nowhere")
    with pytest.raises(ResultError, match="cannot be read"):
        Count.load(tmp_path)


def test_a_result_that_cannot_be_written_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        Count(numbers=()).save(tmp_path / "no" / "count.json")
    assert list(tmp_path.iterdir()) == []


def test_a_child_of_a_result_has_a_kind_of_its_own(tmp_path):
    file = Other(numbers=(1,)).save(tmp_path / "other.json")
    with pytest.raises(OrbitlensError, match="expected 'count'"):
        Count.load(file)


@pytest.mark.parametrize("note", ["", "a\nb\nc\nd\ne", "long words " * 200, "x" * 5000])
def test_a_repr_has_three_lines_at_most(note):
    lines = repr(Count(numbers=(1,), note=note)).splitlines()
    assert lines[0].startswith("Count:") and len(lines) <= 3
    assert all(len(line) <= 100 for line in lines)
    assert "to_pandas" in lines[-1]


def test_nothing_that_a_result_holds_can_break_out_of_its_view():
    page = Count(numbers=(1,), note='"></iframe><script>alert(1)</script>')._repr_html_()
    assert page.count("<") == 2 and page.startswith("<iframe") and page.endswith("</iframe>")
    assert "<script" not in page


def test_long_tables_of_a_view_say_what_they_leave_out():
    page = Count(numbers=tuple(range(1000)))._repr_html_()
    assert "801 more rows: to_pandas() has all" in page


def test_a_notebook_shows_the_figure_as_plotly_does_there(monkeypatch):
    plotly_io = pytest.importorskip("plotly.io")
    bundle = {"text/html": "<div>the figure</div>"}
    monkeypatch.setattr(
        plotly_io.renderers, "_build_mime_bundle", lambda *arguments, **options: bundle
    )
    assert Count(numbers=(1,))._repr_html_().endswith("</iframe><div>the figure</div>")


def test_without_plotly_there_are_words_and_tables(monkeypatch):
    real = builtins.__import__

    def without(name, *arguments, **options):
        if name.startswith("plotly"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    result = Count(numbers=(1,))
    with pytest.raises(MissingPackageError, match=r"pip install 'orbitlens\[plot\]'"):
        result.plot()
    assert "1 numbers." in result._repr_html_()


def test_a_file_of_a_result_is_plain_json(tmp_path):
    file = Count(numbers=(1,)).save(tmp_path / "count.json")
    assert json.loads(file.read_text(encoding="utf-8"))["numbers"] == [1]
