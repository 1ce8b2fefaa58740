"""Map of heads: a grid of buttons, one a head; the page's script shows all about the chosen one."""

from collections.abc import Iterable, Sequence

from orbitlens.draw.figure import Heat, Panel
from orbitlens.draw.page import esc
from orbitlens.reporting.chart import PageChart, layer_name
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.effects import (
    HeadEffect,
    direction_word,
    head_effects,
)
from orbitlens.reporting.markup import Row, Table, absent, behind, number, table
from orbitlens.reporting.sections.section import Place
from orbitlens.tracing.reports import CLEAR
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE

SCALES = (
    0.01,
    0.02,
    0.03,
    0.05,
    0.08,
    0.12,
    0.2,
    0.3,
    0.5,
    1.0,
)  # ends of the colour scales of heads
MOST_WRITTEN = 16  # heads a layer beyond which buttons have no room for a number
READINGS = ("measured", "predicted", "weights", "disagree")
MARKS = {"predicted": "P", "weights": "W"}  # of a reading with the other sign


def heads_section(model: ModelReport, place: Place) -> str:
    """Return the map: a grid of buttons, and a switch between readings."""
    effects = head_effects(model)
    if not effects:
        return absent(model.why("scan"))
    readings = READINGS if any(one.traced for one in effects) else ("weights",)
    choices = "".join(
        f'<label><input type="radio" name="reading-{place.k}" value="{name}"'
        f"{' checked' if k == 0 else ''}> {name}</label>"
        for k, name in enumerate(readings)
    )
    scales = f'data-scale="{place.scale:g}" data-weights="{place.weights_scale:g}"'
    return (
        f'<div class="heads" data-model="{place.k}" data-open="{esc(_strongest(effects))}" '
        f'data-closure="{esc(DEFAULT_CLOSURE)}" data-clear="{CLEAR:g}" {scales}>'
        f'<div class="title"><h4>What each head does to directions</h4>'
        f'<fieldset class="choices switch"><legend>Reading</legend>{choices}</fieldset></div>'
        f"{_grid(model, effects, place)}"
        '<p class="scale" aria-hidden="true"><span></span><i></i><span></span></p>'
        '<p class="reading note" aria-live="polite"></p></div>'
        + behind(table(every_head(model)), "All heads as a table")
    )


def _strongest(effects: Sequence[HeadEffect]) -> str:
    """Return the head that does most, by its measured share or else by its index."""

    def size(one: HeadEffect) -> float:
        return abs(one.head.expansion_index if one.measured is None else one.measured)

    return max(effects, key=size).key


def _grid(model: ModelReport, effects: Sequence[HeadEffect], place: Place) -> str:
    scan = model.scan
    assert scan is not None
    widest = max(len(layer.heads) for layer in scan.layers)
    by_layer: dict[str, list[HeadEffect]] = {}
    for one in effects:
        by_layer.setdefault(layer_name(scan.model, one.layer), []).append(one)
    rows = "".join(
        f'<tr><th scope="row">{esc(name)}</th>'
        f"{''.join(_button(one, widest <= MOST_WRITTEN, place) for one in heads)}</tr>"
        for name, heads in by_layer.items()
    )
    head = "".join(f'<th scope="col">{h}</th>' for h in range(widest))
    return (
        f'<div class="scroll map" style="--rows:{len(by_layer)}"><table class="grid">'
        "<caption>Layers downwards, heads across</caption>"
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _button(one: HeadEffect, written: bool, place: Place) -> str:
    traced = one.measured is not None
    value = one.measured if one.measured is not None else one.head.expansion_index
    scale = place.scale if traced else place.weights_scale
    text = (
        f"{direction_word(value)}, change of ln(1 − C) {number(value, sign=True)}"
        if traced
        else f"{one.head.orientation.value}, index {number(value, sign=True)}"
    )
    label = f"layer {one.layer.layer}, head {one.head.head}: {text}"
    amount = round(85 * min(1.0, abs(value) / scale))
    return (
        f'<td><button type="button" class="head" data-head="{esc(one.key)}" data-v="{value!r}" '
        f'style="--hue:var(--{"spread" if value > 0 else "gather"});--amount:{amount}%" '
        f'aria-label="{esc(label)}">{short(value) if written else ""}</button></td>'
    )


def short(value: float) -> str:
    """Write a value into a small button.

    >>> short(-0.0213), short(0.0004), short(0.123)
    ('−.021', '0', '+.123')
    """
    text = f"{value:+.3f}".replace("-", "−").replace("0.", ".", 1)
    return "0" if text.strip("+−.0") == "" else text


# --- colours -----------------------------------------------------------------------------------


def colour_scale(models: Sequence[ModelReport], *, weights: bool = False) -> float:
    """Return the end of the colour scale that all maps of a report share."""
    values = [
        value
        for model in models
        for one in head_effects(model)
        for value in ((one.head.expansion_index,) if weights else (one.measured,))
    ]
    return nice_end(abs(value) for value in values if value is not None)


def nice_end(sizes: Iterable[float]) -> float:
    """Return the end of a colour scale for values of given sizes.

    >>> nice_end([0.02, 0.04])
    0.05
    """
    largest = max(sizes, default=SCALES[-1])
    return next(end for end in SCALES if largest <= end or end == SCALES[-1])


# --- picture and tables ------------------------------------------------------------------------


def pictures(model: ModelReport) -> list[PageChart]:
    """Return the map as a table of colours, for a picture: measured, or read from weights."""
    effects = head_effects(model)
    if not effects:
        return []
    assert model.scan is not None
    traced = any(one.traced for one in effects)
    widest = max(len(layer.heads) for layer in model.scan.layers)
    rows: dict[str, list[float | None]] = {}
    for one in effects:
        value = one.measured if traced else one.head.expansion_index
        rows.setdefault(layer_name(model.scan.model, one.layer), []).append(value)
    end = nice_end(abs(v) for row in rows.values() for v in row if v is not None)
    heat = Heat(
        values=[row + [None] * (widest - len(row)) for row in rows.values()],
        x_names=[str(k) for k in range(widest)],
        y_names=list(rows),
        limits=(-end, end),
        colours="signed",
        bar="change of ln(1 − C)" if traced else "expansion index",
    )
    title = (
        "Measured: blue gathers directions, orange spreads them"
        if traced
        else "Weights: blue is opposed, orange aligned"
    )
    panel = Panel(layers=[heat], title=title, x_label="head", y_label="layer")
    return [PageChart(kind="heads", title=title, panel=panel, table=every_head(model))]


def every_head(model: ModelReport) -> Table:
    """Return all heads with their readings."""
    effects = head_effects(model)
    rows: list[Row] = []
    for one in effects:
        head = one.head
        held = [c.name for c in head.certificates if c.holds]
        others = [
            reading.expansion_index if reading else None
            for reading in (head.data_aware, head.rotary)
        ]
        rows.append([
            f"{one.layer.stack} {one.layer.layer}.{head.head}", direction_word(one.measured),
            one.measured, one.predicted, " and ".join(one.disagrees) or "–",
            head.expansion_index, *others, head.orientation.value, head.alignment_sigmas,
            head.regime.value, head.ov_abscissa,
            ", ".join(held) or "none",
        ])  # fmt: skip
    columns = ("head", "directions", "measured ΔS", "predicted ΔS", "other sign", "index",
               "with covariance", "in context", "maps", "sigmas", "regime", "Re λ max of V",
               "held")  # fmt: skip
    caption = "Every head: change of S = ln(1 − C) by it; then what its weights say"
    keys = tuple(one.key for one in effects)
    return Table(name="heads", caption=caption, columns=columns, rows=rows, heads=keys)


def tables(model: ModelReport) -> list[Table]:
    """Return heads, spectra and flows, for CSV files; the page draws one head."""
    all_heads = [every_head(model)] if model.scan is not None else []
    return [*all_heads, *_spectra(model), _flows(model)]


def _spectra(model: ModelReport) -> list[Table]:
    rates, values, offsets = list[Row](), list[Row](), list[Row]()
    for each in model.spectra:
        name = f"{each.stack} {each.layer}.{each.head}"
        rates += [[name, k, value] for k, value in enumerate(each.rates)]
        values += [[name, k, *value] for k, value in enumerate(each.eigenvalues)]
        offsets += [
            [name, *row]
            for row in zip(each.offsets, each.offset_index, each.offset_size, strict=True)
        ]
    return [
        Table(name="rates", caption="Rates of every head", columns=("head", "k", "rate"),
              rows=rates),
        Table(name="eigenvalues", caption="Eigenvalues of every value map",
              columns=("head", "k", "real", "imaginary"), rows=values),
        Table(name="offsets", caption="Rotary: heads by offset",
              columns=("head", "offset", "index", "size"), rows=offsets),
    ]  # fmt: skip


def _flows(model: ModelReport) -> Table:
    rows: list[Row] = [
        [f"{flow.stack} {flow.layer}.{flow.head}", time, token, *spot]
        for flow in model.flows
        for time, frame in zip(flow.times, flow.positions, strict=True)
        for token, spot in enumerate(frame)
    ]
    columns = ("head", "time", "token", "x", "y")
    return Table(name="flows", caption="Simulated flows", columns=columns, rows=rows)
