"""Tables fit where they are printed, and say which columns found no room."""

import io

import pytest
from rich.console import Console

from orbitlens.terminal.fitted_table import Column, FittedTable, text_column

NAMES = ("layer", "index", "smallest", "mean", "largest", "spread")
ROWS = [[str(k), "+0.125", "-0.250", "+0.375", "+0.500", "7"] for k in range(3)]
NUMBERS = FittedTable([Column(name) for name in NAMES], ROWS)


def printed(table, width):
    console = Console(width=width, file=io.StringIO(), record=True)
    console.print(table)
    return console.export_text()


@pytest.mark.parametrize("width", range(8, 90, 3))
def test_numbers_are_whole_or_their_column_is_named(width):
    text = printed(NUMBERS, width)
    n = NUMBERS.n_columns(min(width, 80))
    assert all(len(line) <= width for line in text.splitlines())
    lines = [line.split() for line in text.splitlines()]
    for row in ROWS:
        assert row[:n] in lines
    words = " ".join(text.split())
    for name in NAMES[n:]:
        assert name in words.partition("no room")[2]
    assert ("no room" in words) == (n < len(NAMES))


def test_text_wraps_before_columns_are_left_out():
    words = "one two three four five six seven eight nine ten"
    table = FittedTable([text_column("name"), Column("value")], [[words, "0.125"]], full=True)
    text = printed(table, 30)
    assert "no room" not in text and "0.125" in text
    assert set(words.split()) <= set(text.split())


def test_a_long_word_is_folded_and_does_not_push_numbers_out():
    table = FittedTable([text_column("name"), Column("value")], [["x" * 70, "0.125"]], full=True)
    text = printed(table, 40)
    assert text.count("x") == 70 and "0.125" in text


def test_markup_in_a_cell_is_text():
    assert "[red]a[/red]" in printed(FittedTable([Column("x")], [["[red]a[/red]"]]), 40)
