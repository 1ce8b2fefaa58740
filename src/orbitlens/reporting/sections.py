"""Report JSON -> the first sections of a page: words, heads, depth, agreement and orbits.

Enters: one model of a report's JSON and its number. Leaves: HTML that is complete without any
script but for the charts. A section whose result is missing says why.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from orbitlens.reporting import tables
from orbitlens.reporting.markup import (
    Chart,
    Key,
    Model,
    Table,
    absent,
    behind,
    chart,
    esc,
    keys,
    number,
    table,
    why,
)
from orbitlens.reporting.sections_order import order, slices, trust

SCALES = (0.1, 0.25, 0.5, 1.0)  # ends of the colour scale of heads
SUMMARY = (
    "model", "layers", "heads", "width", "position", "spread", "gather", "attention", "MLPs",
    "predicted, r", "order", "from encoding",
)  # fmt: skip
MODEL = Key("model", "spread")
CONTROLS = {
    "twin": Key("untrained twin", "muted", "band"),
    "shuffled": Key("shuffled", "gather", "band"),
}


# --- in words, and all models side by side ---------------------------------------------------


def words(model: Model, k: int) -> str:
    """Return the numbers that matter, and the sentences."""
    said = "".join(f"<li>{esc(text)}</li>" for text in model["words"])
    notes = "".join(f'<p class="note">{esc(note)}.</p>' for note in model["notes"])
    listed = f'<ol class="words">{said}</ol>' if said else absent(why(model, "scan"))
    return _tiles(model) + listed + notes


def _tiles(model: Model) -> str:
    scan, trace, audit = model["scan"], model["trace"], model["audit"]
    shown = []
    if scan is not None:
        found = own_heads(model)
        n = {way: sum(h["tendency"] == way for h in found) for way in ("gathers", "spreads")}
        rest = len(found) - sum(n.values())
        text = f"{n['gathers']} gather, {n['spreads']} spread, {rest} neither"
        shown.append((f"{len(found)} heads", text, _bar(n["gathers"], rest, n["spreads"])))
    if trace is not None:
        total = sum(x["attention"]["measured_log_change"] for x in trace["layers"])
        shown.append((number(total, sign=True), "ln change of squared distances by attention", ""))
        report = trace["agreement"]
        score = report["per_closure"][report["closure"]]["heads"]
        text = f"correlation of predicted and measured, {score['n']} heads"
        shown.append((number(score["pearson"]), text, ""))
    if audit is not None:
        value = tables.value_of_cell(audit["cells"][audit["model"]["own_cell"]])
        unit = " bits" if audit["model"]["has_head"] else ""
        shares = audit["shapley"]
        text = "order sensitivity"
        if shares is not None:
            text += f", {shares['encoding']:.0%} from the encoding"
        shown.append((f"{number(value)}{unit}", text, ""))
    tiles = "".join(
        f"<li><b>{esc(value)}</b><span>{esc(text)}</span>{bar}</li>" for value, text, bar in shown
    )
    return f'<ul class="tiles">{tiles}</ul>' if tiles else ""


def _bar(gather: int, neither: int, spread: int) -> str:
    parts = (("gather", gather), ("line", neither), ("spread", spread))
    inside = "".join(f'<i style="flex:{n};background:var(--{tone})"></i>' for tone, n in parts if n)
    return f'<span class="mini" aria-hidden="true">{inside}</span>'


def own_heads(model: Model) -> list[Mapping[str, Any]]:
    """Return the heads of layers whose weights are their own; shared ones count once."""
    shared = model["weights_of"]
    return [
        head
        for layer in model["scan"]["layers"]
        if shared[layer["stack"]][layer["layer"]] == layer["layer"]
        for head in layer["heads"]
    ]


def summary_table(models: list[Model]) -> str:
    """Return one row a model, with the numbers that compare."""
    caption = (
        "Models side by side: heads that spread and gather (shared ones count once); sums over "
        "layers of the measured ln change of squared pair distance; correlation of prediction and "
        "measurement over heads; order sensitivity (bits, or relative change without a "
        "prediction head)"
    )
    rows = [summary_row(model) for model in models]
    return table(Table(name="models", caption=caption, columns=SUMMARY, rows=rows))


def summary_row(model: Model) -> list[Any]:
    """Return the numbers of one model that compare."""
    scan, trace, audit = model["scan"], model["trace"], model["audit"]
    row: list[Any] = [model["name"]]
    if scan is None:
        row += [None] * 6
    else:
        info, found = scan["model"], own_heads(model)
        row += [info["n_layers"], len(found), info["d_model"], info["position"]]
        row += [sum(h["tendency"] == way for h in found) for way in ("spreads", "gathers")]
    if trace is None:
        row += [None] * 3
    else:
        row += [sum(x[p]["measured_log_change"] for x in trace["layers"]) for p in
                ("attention", "mlp")]  # fmt: skip
        report = trace["agreement"]
        row.append(report["per_closure"][report["closure"]]["heads"]["pearson"])
    row.append(tables.value_of_cell(audit["cells"][audit["model"]["own_cell"]]) if audit else None)
    row.append(audit["shapley"]["encoding"] if audit and audit["shapley"] else None)
    return row


# --- map of heads ----------------------------------------------------------------------------


def colour_scale(models: list[Model]) -> float:
    """Return the end of the colour scale that all maps of a report share."""
    largest = max(
        (abs(value) for model in models for value in _indices(model) if value is not None),
        default=1.0,
    )
    return nice_end([largest])


def nice_end(sizes: Iterable[float]) -> float:
    """Return the end of a colour scale for indices of given sizes.

    >>> nice_end([0.02, 0.3])
    0.5
    """
    largest = max(sizes, default=SCALES[-1])
    return next(end for end in SCALES if largest <= end or end == SCALES[-1])


def _indices(model: Model) -> list[float | None]:
    if model["scan"] is None:
        return []
    found: list[float | None] = []
    for layer in model["scan"]["layers"]:
        for head in layer["heads"]:
            found += [r["expansion_index"] for r in (head, head["data_aware"], head["rotary"]) if r]
    return found


def heads(model: Model, k: int, scale: float = 1.0) -> str:
    """Return the map: a grid of buttons, one a head, and a panel for the chosen one."""
    scan = model["scan"]
    if scan is None:
        return absent(why(model, "scan"))
    readings = {"weights": "weights alone"}
    first = scan["layers"][0]["heads"][0]
    if first["data_aware"] is not None:
        readings["data"] = "as the data lie"
    if first["rotary"] is not None:
        readings["context"] = f"in a context of {first['rotary']['context']}"
    choices = "".join(
        f'<label><input type="radio" name="reading-{k}" value="{name}"'
        f"{' checked' if name == 'weights' else ''}> {esc(text)}</label>"
        for name, text in readings.items()
    )
    return (
        f'<div class="heads" data-model="{k}" data-open="{_strongest(scan)}" '
        f'data-scale="{scale:g}">'
        f'<fieldset class="choices"><legend>Expansion index from</legend>{choices}</fieldset>'
        f"{head_grid(scan, scale)}"
        f'<p class="scale" aria-hidden="true"><span>gathers −{scale:g}</span><i></i>'
        f"<span>+{scale:g} spreads</span></p></div>"
        + behind(table(tables.every_head(model)), "All heads as a table")
    )


def _strongest(scan: Mapping[str, Any]) -> str:
    pairs = [(n, h) for n, layer in enumerate(scan["layers"]) for h in layer["heads"]]
    n, head = max(pairs, key=lambda pair: abs(pair[1]["expansion_index"]))
    return f"{n}.{head['head']}"


def head_grid(scan: Mapping[str, Any], scale: float) -> str:
    """Return the map as a table of buttons."""
    widest = max(len(layer["heads"]) for layer in scan["layers"])
    several = len(scan["model"]["stacks"]) > 1
    rows = []
    for n, layer in enumerate(scan["layers"]):
        name = f"{layer['stack']} {layer['layer']}" if several else f"{layer['layer']}"
        cells = "".join(_head_button(n, layer, head, (widest, scale)) for head in layer["heads"])
        rows.append(f'<tr><th scope="row">{esc(name)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{h}</th>' for h in range(widest))
    return (
        '<div class="scroll"><table class="grid"><caption>Layers downwards, heads across</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head_button(
    n: int, layer: Mapping[str, Any], head: Mapping[str, Any], size: tuple[int, float]
) -> str:
    widest, scale = size
    value = head["expansion_index"]
    label = (
        f"layer {layer['layer']}, head {head['head']}: expansion index {number(value, sign=True)}, "
        f"{head['tendency']}"
    )
    text = f"{value:+.2f}".replace("-", "−") if widest <= 16 else ""
    amount = round(85 * min(1.0, abs(value) / scale))
    return (
        f'<td><button type="button" class="head" data-head="{n}.{head["head"]}" '
        f'data-v="{value!r}" style="--hue:var(--{"spread" if value > 0 else "gather"});'
        f'--amount:{amount}%" aria-label="{esc(label)}">{text}</button></td>'
    )


# --- through depth, and agreement ------------------------------------------------------------


def depth(model: Model, k: int) -> str:
    """Return what attention, MLP and norms do in each layer, and metrics over depth."""
    trace = model["trace"]
    if trace is None:
        return absent(why(model, "trace"))
    entries = [MODEL, *(key for name, key in CONTROLS.items() if name in model["bands"])]
    changes = "".join(
        chart(Chart(kind="parts", model=k, title=f"{title}: ln change of squared distances",
                    table=tables.over_depth(model, "parts", name), extra=name, shape="low"))
        for name, title in tables.PARTS.items()
    )  # fmt: skip
    metrics = "".join(
        chart(Chart(kind="metrics", model=k, title=title, extra=name, shape="low",
                    table=tables.over_depth(model, "metrics", name)))
        for name, title in tables.METRICS.items()
        if name in trace["layers"][0]["metrics"]
    )  # fmt: skip
    runs = {name: band["runs"] for name, band in model["bands"].items()}
    note = ""
    if runs:
        times = ", ".join(f"{tables.TITLES[name]} {n}" for name, n in runs.items())
        note = f'<p class="note">Bands span the runs of each control ({esc(times)}).</p>'
    controls = "".join(
        f'<p class="note">No {name}: {esc(model["missing"][part])}.</p>'
        for part, name in (("twin", "untrained twin"), ("shuffled", "shuffled control"))
        if part in model["missing"]
    )
    return (
        keys(entries)
        + f'<div class="small three">{changes}</div><div class="small three">{metrics}</div>'
        + behind(table(tables.all_metrics(model)), "All metrics as a table")
        + note
        + controls
    )


def agreement(model: Model, k: int) -> str:
    """Return predicted, simulated and measured, over layers and over heads."""
    trace = model["trace"]
    if trace is None:
        return absent(why(model, "trace"))
    report = trace["agreement"]
    layers = Chart(
        kind="layers", model=k, title="Attention, layer by layer: ln change of squared distances",
        table=tables.attention_layers(model),
        keys=(Key("measured", "ink"), Key("predicted", "spread", "dash"),
              Key("simulated", "gather", "dots")),
    )  # fmt: skip
    each = Chart(
        kind="scatter", model=k, title="Heads: predicted against measured ln change",
        table=tables.attention_heads(model),
        keys=(Key("a head", "spread", "point"), Key("equal", "muted", "dots")),
    )  # fmt: skip
    fitted = "not fitted on" if report["held_out"] else "fitted on (too little text for two halves)"
    return (
        f'<p class="note">Judged on contexts the prediction was {fitted}; '
        f"“predicted” is the closure “{esc(report['closure'])}”.</p>"
        f'<div class="pair">{chart(layers)}{chart(each)}</div>'
        + table(tables.agreement(model, main=True))
        + behind(table(tables.agreement(model, main=False)), "Other closures, for comparison")
    )


# --- orbits ----------------------------------------------------------------------------------


def orbits(model: Model, k: int) -> str:
    """Return the place where tokens move through depth."""
    found = model["orbits"]
    if found is None:
        return absent(why(model, "orbits", "model"))
    last = len(found["depths"]) - 1
    flat, solid = sum(found["explained"][:2]), sum(found["explained"])
    left = f"; {found['n_left_out']} tokens are left out" if found["n_left_out"] else ""
    drawn = Chart(
        kind="orbits", model=k, table=tables.orbits(model), shape="tall",
        title=f"Directions of {len(found['tokens'])} tokens in the axes in which they vary most: "
        f"two hold {flat:.0%} of the variance, three {solid:.0%}{left}",
    )  # fmt: skip
    player = (
        '<div class="player"><button type="button">Play</button>'
        f'<label>Depth <input type="range" min="0" max="{last}" value="{last}"></label>'
        f"<output>{esc(found['depths'][-1])}</output></div>"
    )
    choices = (
        '<fieldset class="choices"><legend>Show</legend>'
        f'<label><input type="radio" name="view-{k}" value="2" checked> 2-D</label>'
        f'<label><input type="radio" name="view-{k}" value="3"> 3-D, drag to turn</label>'
        '<label><input type="checkbox" name="words"> tokens as text</label></fieldset>'
        '<p class="scale place" aria-hidden="true"><span>first token</span><i></i>'
        "<span>last token</span></p>"
    )
    return f'<div class="orbits" data-model="{k}">{choices}{chart(drawn, after=player)}</div>'


RENDER: Mapping[str, Callable[[Model, int], str]] = {
    "words": words,
    "heads": heads,
    "depth": depth,
    "agreement": agreement,
    "orbits": orbits,
    "order": order,
    "slices": slices,
    "trust": trust,
}
