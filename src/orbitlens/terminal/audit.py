"""Audit -> what a terminal shows: the 2 x 2, the shares as a bar, checks, layers, one sentence.

Enters: an `Audit`. Leaves: Rich renderables that fit 80 columns.
"""

from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from orbitlens.order.audit_result import Audit, value_of
from orbitlens.order.sensitivity import CellReading, SizedReading
from orbitlens.order.slices import SliceReading
from orbitlens.order.subject import Cell
from orbitlens.order.words import interval, percent, square_of, unit_of
from orbitlens.terminal.fitted_table import Column, FittedTable, text_column

BAR = 40  # cells of the bar of shares, where there is room
AROUND_BAR = 58  # columns of the words on its sides


def audit_view(audit: Audit, console: Console) -> Iterator[RenderableType]:
    """Yield the parts of an audit's report, top to bottom."""
    yield _title(audit)
    yield Padding(Text(audit.summary()), (0, 0, 1, 0))
    yield Text(f"order sensitivity, {unit_of(audit)} (95 % interval)", style="bold")
    yield Padding(_square(audit), (0, 0, 1, 0))
    if audit.has_encoding and audit.effects is not None:
        yield Padding(_mechanisms(audit, console), (0, 0, 1, 0))
    yield from _lines(audit)
    if audit.slices is not None and audit.slices.variants:
        yield Padding(_slices(audit), (1, 0, 0, 0))
    yield Padding(_checks(audit), (1, 0, 0, 0))
    for note in [*audit.notes, *(audit.slices.notes if audit.slices else ())]:
        yield Text(f"note: {note}", style="dim")
    yield Text(_cost(audit), style="dim")


def _title(audit: Audit) -> Text:
    model, settings = audit.model, audit.settings
    first, last = settings.movable
    return Text(
        f"{model.path or model.family}: {model.n_parameters:,} parameters, {model.n_layers} "
        f"layers\n{settings.samples} inputs ({settings.source}) of {settings.length} tokens, "
        f"tokens {first} to {last} permuted, {settings.permutations} permutations"
        f"{' at each place' if len(settings.places) > 1 else ''}\n"
    )


def _square(audit: Audit) -> Table:
    columns, rows = square_of(audit)
    table = Table(box=None, padding=(0, 2), header_style="bold")
    for name in ("", *columns):
        table.add_column(name, overflow="fold")
    for name, cells in rows.items():
        table.add_row(name, *(_cell(audit, cell) for cell in cells))
    own = audit.cells[audit.model.own_cell]
    assert own is not None
    for place in own.places:
        text = f"{place.mean:.4f} ({place.low:.3f}-{place.high:.3f})"
        table.add_row(f"  asked at position {place.place}", text, style="dim")
    return table


def _cell(audit: Audit, cell: Cell) -> Text:
    reading = audit.cells[cell.value]
    if reading is None:
        return Text(audit.not_ablatable.get(cell.value, "").partition(":")[0], style="dim")
    own = cell.value == audit.model.own_cell
    return Text(_interval(reading) + (" *" if own else ""), style="bold" if own else "")


def _interval(reading: CellReading) -> str:
    value = value_of(reading)
    if value < 1e-3:
        return f"{value:.1e}"
    return f"{value:.4f} ({reading.low:.3f}-{reading.high:.3f})"


def _mechanisms(audit: Audit, console: Console) -> Text:
    """Return the shares as a bar, or what each mechanism brings where there are none."""
    shares, effects = audit.shapley, audit.effects
    if shares is None:
        assert effects is not None
        return Text(
            f"no shares: encoding alone {effects.encoding.mean:.2g}, mask alone "
            f"{effects.mask.mean:.2g}, interaction {interval(effects.interaction)}"
        )
    cells = max(8, min(BAR, console.width - AROUND_BAR))
    n_encoding = round(cells * shares.encoding)
    utf = (console.encoding or "").lower().startswith("utf")
    left, right = ("█", "░") if utf else ("#", "-")
    text = Text(f"encoding {percent(shares.encoding, shares.encoding_interval)} ")
    text.append(left * n_encoding, style="orange3")
    text.append(right * (cells - n_encoding), style="dodger_blue1")
    text.append(f" {percent(shares.mask, shares.mask_interval)} mask")
    return text


def _lines(audit: Audit) -> Iterator[RenderableType]:
    own = audit.model.own_cell
    defects = [reading.defects[own] for reading in audit.layers]
    rows = [["by layer", _few([f"{value:.2f}" for value in defects])]]
    for name, readings in (
        ("by swap distance", audit.swap_distance),
        ("within windows of", audit.windows),
        ("n-grams kept", audit.ngrams),
    ):
        if readings:
            rows.append([name, _sized(readings)])
    blocks = [
        f"{b.first}-{b.last} ({b.shuffled:.2g} shuffled{'' if b.free else ', not free as a whole'})"
        for b in audit.blocks
    ]
    if audit.positions:
        rows.append(["free blocks", _few(blocks) if blocks else "none"])
    yield FittedTable([text_column(wraps=False), text_column()], rows, header=False, full=True)


def _few(words: Sequence[str], most: int = 24) -> str:
    shown = list(words) if len(words) <= most else [*words[: most - 1], "...", words[-1]]
    return "  ".join(shown)


def _sized(rows: Sequence[SizedReading]) -> str:
    return "  ".join(f"{row.size}: {row.mean:.3g}" for row in rows)


def _slices(audit: Audit) -> FittedTable:
    assert audit.slices is not None
    names = ("token", "previous", "next", "control", "place R²", "adjacent")
    rows = []
    for variant in audit.slices.variants:
        name = "as it is" if variant.removed == "none" else f"no residual: {variant.removed}"
        rows.append([name, *_slice_cells(variant.layers[-1])])
    first = text_column("slices, last layer", wraps=False)
    return FittedTable([first, *map(Column, names)], rows, full=True)


def _slice_cells(reading: SliceReading) -> list[str]:
    if reading.identity is None or reading.previous is None or reading.following is None:
        tokens = ["-"] * 4
    else:
        scores = (reading.identity, reading.previous, reading.following)
        tokens = [f"{score.score:.2f}" for score in scores] + [f"{reading.identity.control:.2f}"]
    return [*tokens, f"{reading.position.score:.2f}", f"{reading.adjacency:.2f}"]


def _checks(audit: Audit) -> FittedTable:
    rows = []
    for check in audit.checks:
        relation = "<=" if check.must == "stay" else ">"
        passed = "ok" if check.passed else "FAILED"
        rows.append([check.name, f"{check.value:.1e}", f"{relation} {check.limit:.0e}", passed])
    columns = [
        text_column("self-check"),
        Column("value"),
        text_column("must be", wraps=False),
        text_column("", wraps=False),
    ]
    return FittedTable(columns, rows, full=True)


def _cost(audit: Audit) -> str:
    cost = audit.cost
    return (
        f"{cost.seconds:.1f} s, {cost.forward_calls} forward calls, {cost.sequences:,} sequences "
        f"({cost.sequences_asked:,} asked for)"
    )
