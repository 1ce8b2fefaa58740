"""Map of heads: a grid of buttons, one a head; the page's script shows all about the chosen one."""

from collections.abc import Iterable, Iterator, Sequence

from orbitlens.draw.figure import Heat, Panel
from orbitlens.draw.page import esc
from orbitlens.reporting.chart import PageChart, layer_name
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import Row, Table, absent, behind, number, table
from orbitlens.reporting.sections.section import Place
from orbitlens.scanning.scan_result import HeadScan, LayerScan, Scan

SCALES = (0.1, 0.25, 0.5, 1.0)  # ends of the colour scale of heads
MOST_WRITTEN = 16  # heads a layer beyond which buttons have no room for a number
READINGS = {"weights": "weights alone", "data": "weights and measured covariance"}


def heads_section(model: ModelReport, place: Place) -> str:
    """Return the map: a grid of buttons, and a switch between readings of the index."""
    scan = model.scan
    if scan is None:
        return absent(model.why("scan"))
    choices = "".join(
        f'<label><input type="radio" name="reading-{place.k}" value="{name}"'
        f"{' checked' if name == 'weights' else ''}> {esc(text)}</label>"
        for name, text in _readings(scan).items()
    )
    return (
        f'<div class="heads" data-model="{place.k}" data-open="{_strongest(scan)}" '
        f'data-scale="{place.scale:g}">'
        f'<fieldset class="choices"><legend>Expansion index from</legend>{choices}</fieldset>'
        f"{_grid(scan, place.scale)}"
        f'<p class="scale" aria-hidden="true"><span>opposed −{place.scale:g}</span><i></i>'
        f"<span>+{place.scale:g} aligned</span></p></div>"
        + behind(table(every_head(model)), "All heads as a table")
    )


def _readings(scan: Scan) -> dict[str, str]:
    first = scan.layers[0].heads[0]
    readings = {"weights": READINGS["weights"]}
    if first.data_aware is not None:
        readings["data"] = READINGS["data"]
    if first.rotary is not None:
        readings["context"] = f"weights in a context of {first.rotary.context}"
    return readings


def _strongest(scan: Scan) -> str:
    pairs = [(n, head) for n, layer in enumerate(scan.layers) for head in layer.heads]
    n, head = max(pairs, key=lambda pair: abs(pair[1].expansion_index))
    return f"{n}.{head.head}"


def _grid(scan: Scan, scale: float) -> str:
    widest = max(len(layer.heads) for layer in scan.layers)
    rows = []
    for n, layer in enumerate(scan.layers):
        cells = "".join(_button(n, layer, head, (widest, scale)) for head in layer.heads)
        rows.append(f'<tr><th scope="row">{esc(layer_name(scan.model, layer))}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{h}</th>' for h in range(widest))
    return (
        '<div class="scroll"><table class="grid"><caption>Layers downwards, heads across</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _button(n: int, layer: LayerScan, head: HeadScan, size: tuple[int, float]) -> str:
    widest, scale = size
    value = head.expansion_index
    label = (
        f"layer {layer.layer}, head {head.head}: expansion index {number(value, sign=True)}, "
        f"{head.orientation.value}"
    )
    text = f"{value:+.2f}".replace("-", "−") if widest <= MOST_WRITTEN else ""
    amount = round(85 * min(1.0, abs(value) / scale))
    return (
        f'<td><button type="button" class="head" data-head="{n}.{head.head}" '
        f'data-v="{value!r}" style="--hue:var(--{"spread" if value > 0 else "gather"});'
        f'--amount:{amount}%" aria-label="{esc(label)}">{text}</button></td>'
    )


# --- colours -----------------------------------------------------------------------------------


def colour_scale(models: Sequence[ModelReport]) -> float:
    """Return the end of the colour scale that all maps of a report share."""
    return nice_end(abs(v) for m in models if m.scan is not None for v in _indices(m.scan))


def nice_end(sizes: Iterable[float]) -> float:
    """Return the end of a colour scale for indices of given sizes.

    >>> nice_end([0.02, 0.3])
    0.5
    """
    largest = max(sizes, default=SCALES[-1])
    return next(end for end in SCALES if largest <= end or end == SCALES[-1])


def _indices(scan: Scan) -> Iterator[float]:
    for _, head in scan.heads():
        yield from (r.expansion_index for r in (head, head.data_aware, head.rotary) if r)


# --- picture and tables ------------------------------------------------------------------------


def pictures(model: ModelReport) -> list[PageChart]:
    """Return the map as a table of colours, for a picture."""
    scan = model.scan
    if scan is None:
        return []
    widest = max(len(layer.heads) for layer in scan.layers)
    end = nice_end(abs(head.expansion_index) for _, head in scan.heads())
    heat = Heat(
        values=[
            [h.expansion_index for h in layer.heads] + [None] * (widest - len(layer.heads))
            for layer in scan.layers
        ],
        x_names=[str(k) for k in range(widest)],
        y_names=[layer_name(scan.model, layer) for layer in scan.layers],
        limits=(-end, end),
        colours="signed",
        bar="expansion index",
    )
    title = "Expansion index: blue opposed, orange aligned maps"
    panel = Panel(layers=[heat], title=title, x_label="head", y_label="layer")
    return [PageChart(kind="heads", title=title, panel=panel, table=every_head(model))]


def every_head(model: ModelReport) -> Table:
    """Return all heads with their readings."""
    assert model.scan is not None
    rows: list[Row] = []
    for layer, head in model.scan.heads():
        aware, turned = head.data_aware, head.rotary
        held = [c.name for c in head.certificates if c.holds]
        rows.append([
            f"{layer.stack} {layer.layer}.{head.head}", head.expansion_index,
            aware.expansion_index if aware else None, turned.expansion_index if turned else None,
            head.orientation.value, head.alignment_sigmas, head.regime.value, head.rates.min,
            head.rates.max, head.ov_abscissa, ", ".join(held) or "none",
        ])  # fmt: skip
    columns = ("head", "index", "with covariance", "in context", "maps", "sigmas", "regime",
               "smallest rate", "largest rate", "Re λ max of V", "held")  # fmt: skip
    return Table(name="heads", caption="Every head", columns=columns, rows=rows)


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
