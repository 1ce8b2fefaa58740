"""Report JSON -> the sections of a page, each complete without any script.

Enters: one model of a report's JSON and its number. Leaves: HTML with tables, and places for
charts. A section whose result is missing says why.
"""

from collections.abc import Callable, Mapping
from typing import Any

from orbitlens.report.markup import Model, absent, behind, chart, esc, number, table, why
from orbitlens.report.sections_order import order, slices, trust, value_of_cell

METRICS = {
    "mean_squared_distance": "Mean squared pair distance",
    "mean_cosine": "Mean cosine",
    "effective_rank": "Effective rank",
    "attention_sharpness": "Sharpness of attention, Σp²",
    "update_size": "Size of a layer's update",
    "pair_contraction": "Share of pairs that come closer",
}


# --- in words, and all models side by side ---------------------------------------------------


def words(model: Model, k: int) -> str:
    """Return the sentences."""
    said = "".join(f"<li>{esc(text)}</li>" for text in model["words"])
    notes = "".join(f'<p class="note">{esc(note)}.</p>' for note in model["notes"])
    return (f'<ol class="words">{said}</ol>' if said else absent(why(model, "scan"))) + notes


def summary_table(models: list[Model]) -> str:
    """Return one row a model, with the numbers that compare."""
    columns = (
        "model", "layers", "heads", "width", "position", "spread", "gather", "attention",
        "MLPs", "predicted, r", "order", "from encoding",
    )  # fmt: skip
    return table(
        "Models side by side: heads that spread and gather; sums over layers of the measured "
        "ln change of squared pair distance; correlation of prediction and measurement over heads; "
        "order sensitivity (bits, or relative change without a prediction head)",
        columns,
        [_summary_row(model) for model in models],
    )


def _summary_row(model: Model) -> list[Any]:
    scan, trace, audit = model["scan"], model["trace"], model["audit"]
    row: list[Any] = [model["name"]]
    if scan is None:
        row += [None] * 6
    else:
        info, heads = scan["model"], [h for layer in scan["layers"] for h in layer["heads"]]
        row += [info["n_layers"], len(heads), info["d_model"], info["position"]]
        row += [sum(h["tendency"] == way for h in heads) for way in ("spreads", "gathers")]
    if trace is None:
        row += [None] * 3
    else:
        row += [sum(x[p]["measured_log_change"] for x in trace["layers"]) for p in
                ("attention", "mlp")]  # fmt: skip
        report = trace["agreement"]
        row.append(report["per_closure"][report["closure"]]["heads"]["pearson"])
    row.append(value_of_cell(audit["cells"][audit["model"]["own_cell"]]) if audit else None)
    row.append(audit["shapley"]["encoding"] if audit and audit["shapley"] else None)
    return row


# --- map of heads ----------------------------------------------------------------------------


def heads(model: Model, k: int) -> str:
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
    strongest = _strongest(scan)
    return (
        f'<div class="heads" data-model="{k}" data-open="{strongest}">'
        f'<fieldset class="choices"><legend>Expansion index from</legend>{choices}</fieldset>'
        f"{_grid(scan)}{LEGEND}"
        f'<div class="detail" id="detail-{k}" aria-live="polite"></div></div>'
        + behind(_head_table(scan), "All heads as a table")
    )


LEGEND = (
    '<p class="scale" aria-hidden="true"><span>gathers −1</span><i></i><span>+1 spreads</span></p>'
)


def _strongest(scan: Mapping[str, Any]) -> str:
    pairs = [(n, h) for n, layer in enumerate(scan["layers"]) for h in layer["heads"]]
    n, head = max(pairs, key=lambda pair: abs(pair[1]["expansion_index"]))
    return f"{n}.{head['head']}"


def _grid(scan: Mapping[str, Any]) -> str:
    widest = max(len(layer["heads"]) for layer in scan["layers"])
    several = len(scan["model"]["stacks"]) > 1
    rows = []
    for n, layer in enumerate(scan["layers"]):
        name = f"{layer['stack']} {layer['layer']}" if several else f"{layer['layer']}"
        cells = "".join(_head_button(n, layer, head, widest) for head in layer["heads"])
        rows.append(f'<tr><th scope="row">{esc(name)}</th>{cells}</tr>')
    head = "".join(f'<th scope="col">{h}</th>' for h in range(widest))
    return (
        '<div class="scroll"><table class="grid"><caption>Layers downwards, heads across</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _head_button(n: int, layer: Mapping[str, Any], head: Mapping[str, Any], widest: int) -> str:
    value = head["expansion_index"]
    proved = any(c["holds"] and c["name"] in {"T1", "T2"} for c in head["certificates"])
    label = (
        f"layer {layer['layer']}, head {head['head']}: expansion index {number(value, sign=True)}, "
        f"{head['tendency']}"
    )
    text = f"{value:+.2f}".replace("-", "−") if widest <= 16 else ""
    return (
        f'<td><button type="button" class="head" data-head="{n}.{head["head"]}" '
        f'data-v="{value!r}" style="--v:{value:.3f}" aria-label="{esc(label)}" '
        f'title="{esc(label)}"{" data-proved" if proved else ""}>{text}</button></td>'
    )


def _head_table(scan: Mapping[str, Any]) -> str:
    columns = ("head", "index", "as data lie", "tendency", "sigmas", "regime", "largest rate",
               "Re λ max of V", "held")  # fmt: skip
    rows = []
    for layer in scan["layers"]:
        for head in layer["heads"]:
            aware = head["data_aware"]
            held = [c["name"] for c in head["certificates"] if c["holds"]]
            rows.append([
                f"{layer['stack']} {layer['layer']}.{head['head']}", head["expansion_index"],
                aware["expansion_index"] if aware else None, head["tendency"],
                head["alignment_sigmas"], head["regime"], head["rates"]["max"],
                head["ov_abscissa"], ", ".join(held) or "none",
            ])  # fmt: skip
    return table("Every head", columns, rows)


# --- through depth, and agreement ------------------------------------------------------------


def depth(model: Model, k: int) -> str:
    """Return what attention, MLP and norms do in each layer, and metrics over depth."""
    trace = model["trace"]
    if trace is None:
        return absent(why(model, "trace"))
    changes = table(
        "ln of the change of the mean squared pair distance",
        ("layer", "attention", "MLP", "norms", "attention, twin", "attention, shuffled"),
        [
            [_place(trace, layer), layer["attention"]["measured_log_change"],
             layer["mlp"]["measured_log_change"], layer["norm"]["measured_log_change"],
             *(other["layers"][n]["attention"]["measured_log_change"] if other else None
               for other in (trace["twin"], model["shuffled"]))]
            for n, layer in enumerate(trace["layers"])
        ],
    )  # fmt: skip
    small = "".join(
        chart("metric", k, label, extra=name)
        for name, label in METRICS.items()
        if name in trace["layers"][0]["metrics"]
    )
    controls = "".join(
        f'<p class="note">No {name}: {esc(model["missing"][part])}.</p>'
        for part, name in (("twin", "untrained twin"), ("shuffled", "shuffled control"))
        if part in model["missing"]
    )
    return (
        chart("changes", k, "What each part of a layer does to squared pair distances (ln change)")
        + behind(changes)
        + f'<div class="small">{small}</div>'
        + behind(_metric_table(trace))
        + controls
    )


def _place(trace: Mapping[str, Any], layer: Mapping[str, Any]) -> str:
    several = len(trace["model"]["stacks"]) > 1
    return f"{layer['stack']} {layer['layer']}" if several else str(layer["layer"])


def _metric_table(trace: Mapping[str, Any]) -> str:
    names = list(trace["layers"][0]["metrics"])
    rows = [[_place(trace, x), *(x["metrics"][name] for name in names)] for x in trace["layers"]]
    return table("Metrics in front of each layer", ("layer", *names), rows)


def agreement(model: Model, k: int) -> str:
    """Return predicted, simulated and measured, over layers and over heads."""
    trace = model["trace"]
    if trace is None:
        return absent(why(model, "trace"))
    report = trace["agreement"]
    rows = []
    for name, found in report["per_closure"].items():
        for what in ("layers", "heads", "sharpness"):
            one = found[what]
            rows.append([f"{name}, {what}", one["pearson"], one["spearman"], one["sign"],
                         one["mean_error"], one["n"]])  # fmt: skip
    one = report["simulated"]
    rows.append(["simulated, layers", one["pearson"], one["spearman"], one["sign"],
                 one["mean_error"], one["n"]])  # fmt: skip
    columns = ("prediction", "Pearson", "Spearman", "signs right", "mean error", "n")
    layers = table(
        "Attention's ln change of squared pair distance",
        ("layer", "measured", "predicted", "simulated"),
        [[_place(trace, x), x["attention"]["measured_log_change"],
          x["attention"]["predicted_log_change"], x["attention"]["simulated_log_change"]]
         for x in trace["layers"]],
    )  # fmt: skip
    fitted = "not fitted on" if report["held_out"] else "fitted on (too little text for two halves)"
    return (
        f'<p class="note">Judged on contexts the prediction was {fitted}; '
        f"“predicted” is the closure “{esc(report['closure'])}”.</p>"
        f'<div class="pair">{chart("layers", k, "Attention, layer by layer")}'
        f"{chart('scatter', k, 'Heads: predicted against measured')}</div>"
        + table("How well they agree", columns, rows)
        + behind(layers)
    )


# --- orbits ----------------------------------------------------------------------------------


def orbits(model: Model, k: int) -> str:
    """Return the place where tokens move through depth."""
    found = model["orbits"]
    if found is None:
        return absent(why(model, "orbits", "model"))
    last = len(found["depths"]) - 1
    share = sum(found["explained"][:2])
    rows = [
        [f"{n} {token!r}", *found["positions"][0][n][:2], *found["positions"][-1][n][:2]]
        for n, token in enumerate(found["tokens"])
    ]
    left = f"; {found['n_left_out']} tokens are left out" if found["n_left_out"] else ""
    return (
        f'<div class="orbits" data-model="{k}">'
        + chart("orbits", k, f"Directions of {len(found['tokens'])} tokens in the two axes in "
                f"which they vary most ({share:.0%} of the variance){left}", tall=True)
        + f'<div class="player"><button type="button">Play</button>'
        f'<label>Depth <input type="range" min="0" max="{last}" value="{last}"></label>'
        f'<output>{esc(found["depths"][-1])}</output></div></div>'
        + behind(table("Where tokens start and end",
                       ("token", "x, input", "y, input", "x, end", "y, end"), rows))
    )  # fmt: skip


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
