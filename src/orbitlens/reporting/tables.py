"""Report JSON -> tables: the numbers behind every chart, for the page and for CSV files.

Enters: one model of a report's JSON. Leaves: `Table`s. A chart draws what its table holds.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.reporting.markup import Model, Row, Table

PARTS = {"attention": "Attention", "mlp": "MLP", "norm": "Norms"}
METRICS = {
    "mean_squared_distance": "Mean squared pair distance",
    "mean_cosine": "Mean cosine (dots: floor)",
    "effective_rank": "Effective rank",
    "attention_sharpness": "Sharpness of attention, Σp²",
    "update_size": "Size of a layer's update",
    "pair_contraction": "Share of pairs that come closer",
}
CELLS = {
    "pe_causal": "encoding and mask",
    "pe_full": "encoding alone",
    "nope_causal": "mask alone",
    "nope_full": "neither",
}
TITLES = {"twin": "untrained twin", "shuffled": "shuffled"}


def place(result: Mapping[str, Any], layer: Mapping[str, Any]) -> str:
    """Return a layer's name, with its stack where there are several."""
    several = len(result["model"]["stacks"]) > 1
    return f"{layer['stack']} {layer['layer']}" if several else str(layer["layer"])


def output_of(layer: int) -> str:
    """Return the name of a state that an audit numbers from the embedding on."""
    return "embedding" if layer == 0 else f"layer {layer - 1}"


# --- heads -----------------------------------------------------------------------------------


def every_head(model: Model) -> Table:
    """Return all heads with their readings."""
    rows = []
    for layer in model["scan"]["layers"]:
        for head in layer["heads"]:
            aware, turned = head["data_aware"], head["rotary"]
            held = [c["name"] for c in head["certificates"] if c["holds"]]
            rows.append([
                f"{layer['stack']} {layer['layer']}.{head['head']}", head["expansion_index"],
                aware["expansion_index"] if aware else None,
                turned["expansion_index"] if turned else None, head["tendency"],
                head["alignment_sigmas"], head["regime"], head["rates"]["min"],
                head["rates"]["max"], head["ov_abscissa"], ", ".join(held) or "none",
            ])  # fmt: skip
    columns = ("head", "index", "as data lie", "in context", "tendency", "sigmas", "regime",
               "smallest rate", "largest rate", "Re λ max of V", "held")  # fmt: skip
    return Table(name="heads", caption="Every head", columns=columns, rows=rows)


def spectra(model: Model) -> list[Table]:
    """Return rates, eigenvalues and what offsets do, for CSV files; the page draws one head."""
    rates, values, offsets = list[Row](), list[Row](), list[Row]()
    for each in model["spectra"]:
        name = f"{each['stack']} {each['layer']}.{each['head']}"
        rates += [[name, k, value] for k, value in enumerate(each["rates"])]
        values += [[name, k, *value] for k, value in enumerate(each["eigenvalues"])]
        offsets += [
            [name, *row]
            for row in zip(each["offsets"], each["offset_index"], each["offset_size"], strict=True)
        ]
    return [
        Table(name="rates", caption="Rates of every head", columns=("head", "k", "rate"),
              rows=rates),
        Table(name="eigenvalues", caption="Eigenvalues of every value map",
              columns=("head", "k", "real", "imaginary"), rows=values),
        Table(name="offsets", caption="Rotary: heads by offset",
              columns=("head", "offset", "index", "size"), rows=offsets),
    ]  # fmt: skip


def flows(model: Model) -> Table:
    """Return where the tokens of every simulated flow are drawn."""
    rows = [
        [f"{flow['stack']} {flow['layer']}.{flow['head']}", time, token, *spot]
        for flow in model["flows"]
        for time, frame in zip(flow["times"], flow["positions"], strict=True)
        for token, spot in enumerate(frame)
    ]
    columns = ("head", "time", "token", "x", "y")
    return Table(name="flows", caption="Simulated flows", columns=columns, rows=rows)


# --- depth and agreement ---------------------------------------------------------------------


def over_depth(model: Model, kind: str, name: str) -> Table:
    """Return one quantity, layer by layer, with the bands of its controls.

    Args:
        model: of a report's JSON.
        kind: "parts" for the ln change by a part of a layer, or "metrics".
        name: of the part or of the metric.
    """
    trace = model["trace"]
    layers = trace["layers"]
    own = [x[name]["measured_log_change"] if kind == "parts" else x["metrics"][name]
           for x in layers]  # fmt: skip
    controls = [key for key in TITLES if key in model["bands"]]
    bands = [model["bands"][key][kind][name] for key in controls]
    rows = [
        [place(trace, layer), own[n], *(end for band in bands for end in band[n])]
        for n, layer in enumerate(layers)
    ]
    ends = [f"{TITLES[key]}, {end}" for key in controls for end in ("lowest", "highest")]
    if name == "mean_cosine":  # the one metric with a floor of its own
        ends.append("floor")
        rows = [
            [*row, x["metrics"]["shuffled_cosine"]] for row, x in zip(rows, layers, strict=True)
        ]
    title = PARTS[name] + ", ln change" if kind == "parts" else METRICS.get(name, name)
    return Table(
        name=f"depth-{name}", caption=title, columns=("layer", "measured", *ends), rows=rows
    )


def all_depths(model: Model) -> Table:
    """Return all quantities over depth below one another, for a CSV file."""
    metrics = model["trace"]["layers"][0]["metrics"]
    pairs = [("parts", name) for name in PARTS] + [("metrics", name) for name in metrics]
    found = [(name, over_depth(model, kind, name)) for kind, name in pairs]
    rows = [[layer, name, *rest] for name, table in found for layer, *rest in table.rows]
    layer, *rest = max((table.columns for _, table in found), key=len)  # the others lack a floor
    columns = (layer, "quantity", *rest)
    rows = [[*row, *[None] * (len(columns) - len(row))] for row in rows]
    return Table(name="depth", caption="Through depth", columns=columns, rows=rows)


def all_metrics(model: Model) -> Table:
    """Return every metric in front of each layer, drawn or not."""
    trace = model["trace"]
    names = list(trace["layers"][0]["metrics"])
    rows = [[place(trace, x), *(x["metrics"][name] for name in names)] for x in trace["layers"]]
    columns = ("layer", *(METRICS.get(name, name.replace("_", " ")) for name in names))
    return Table(
        name="metrics", caption="Metrics in front of each layer", columns=columns, rows=rows
    )


def attention_layers(model: Model) -> Table:
    """Return attention's change, measured, predicted and simulated."""
    trace = model["trace"]
    rows = [
        [place(trace, x), *(x["attention"][f"{key}_log_change"]
                            for key in ("measured", "predicted", "simulated"))]
        for x in trace["layers"]
    ]  # fmt: skip
    columns = ("layer", "measured", "predicted", "simulated")
    caption = "Attention's ln change of squared pair distance"
    return Table(name="agreement-layers", caption=caption, columns=columns, rows=rows)


def attention_heads(model: Model) -> Table:
    """Return every head's change, predicted and measured."""
    rows = [
        [f"{x['stack']} {x['layer']}.{h['head']}", h["predicted"], h["measured"],
         h["predicted_sharpness"], h["sharpness"]]
        for x in model["trace"]["layers"]
        for h in x["heads"]
    ]  # fmt: skip
    columns = ("head", "predicted", "measured", "sharpness, predicted", "sharpness")
    caption = "What each head alone does: ln change of squared pair distance"
    return Table(name="agreement-heads", caption=caption, columns=columns, rows=rows)


def agreement(model: Model, *, main: bool) -> Table:
    """Return how well predictions agree: of the default closure and the flow, or of the others."""
    report = model["trace"]["agreement"]
    rows: list[Row] = []
    for name, found in report["per_closure"].items():
        if (name == report["closure"]) == main:
            title = "predicted" if main else f"closure “{name}”"
            rows += [[f"{title}, {what}", *_scores(found[what])] for what in
                     ("layers", "heads", "sharpness")]  # fmt: skip
    if main:
        rows.append(["simulated, layers", *_scores(report["simulated"])])
    columns = ("against measured", "Pearson", "Spearman", "signs right", "mean error", "n")
    name = "agreement" if main else "agreement-closures"
    caption = "How well they agree" if main else "Other closures, for comparison"
    return Table(name=name, caption=caption, columns=columns, rows=rows)


def _scores(one: Mapping[str, Any]) -> list[Any]:
    return [one["pearson"], one["spearman"], one["sign"], one["mean_error"], one["n"]]


def orbits(model: Model) -> Table:
    """Return where each token is at each depth."""
    found = model["orbits"]
    rows = [
        [f"{n} {token!r}", depth, *found["positions"][d][n]]
        for n, token in enumerate(found["tokens"])
        for d, depth in enumerate(found["depths"])
    ]
    columns = ("token", "depth", "first", "second", "third")
    return Table(name="orbits", caption="Tokens in the three directions in which they vary most",
                 columns=columns, rows=rows)  # fmt: skip


# --- order -----------------------------------------------------------------------------------


def value_of_cell(reading: Mapping[str, Any] | None) -> float | None:
    """Return a cell's mean in the unit the model has."""
    if reading is None:
        return None
    found = reading["mean_js_bits"]
    return reading["mean_relative_change"] if found is None else found


def cells(model: Model) -> Table:
    """Return the 2 x 2 and the shares."""
    audit = model["audit"]
    rows: list[Row] = []
    for key, name in CELLS.items():
        reading = audit["cells"].get(key)
        ends = [reading["low"], reading["high"]] if reading else [None, None]
        rows.append([name, value_of_cell(reading), *ends])
    shares = audit["shapley"] or {}
    rows += [[f"share of the {name}", shares[name], None, None] for name in ("encoding", "mask")
             if name in shares]  # fmt: skip
    return Table(name="order", caption="Order sensitivity", columns=("model with", "mean", "low",
                 "high"), rows=rows)  # fmt: skip


def defects(model: Model) -> Table:
    """Return the equivariance defect of each layer's output."""
    audit = model["audit"]
    names = [(key, name) for key, name in CELLS.items() if audit["cells"].get(key) is not None]
    rows = [
        [output_of(x["layer"]), *(x["defects"].get(key) for key, _ in names)]
        for x in audit["layers"]
    ]
    columns = ("output of", *(name for _, name in names))
    return Table(name="order-layers", caption="Equivariance defect", columns=columns, rows=rows)


def swaps(model: Model) -> Table:
    """Return what swaps, windows and n-grams of each size do."""
    audit = model["audit"]
    rows = [
        [f"{what} {x['size']}", x["size"], x["mean"], x["low"], x["high"]]
        for key, what in (("swap_distance", "swap at distance"), ("windows", "within windows of"),
                          ("ngrams", "n-grams kept of"))
        for x in audit[key]
    ]  # fmt: skip
    return Table(name="order-sizes", caption="Effects by size",
                 columns=("change", "size", "mean", "low", "high"), rows=rows)  # fmt: skip


def neighbours(model: Model) -> Table:
    """Return what swapping each token with the next one does."""
    rows = [[f"{x['position']} and {x['position'] + 1}", x["position"], x["mean"], x["share_moved"]]
            for x in model["audit"]["positions"]]  # fmt: skip
    columns = ("tokens swapped", "position", "mean effect", "share of inputs moved")
    return Table(name="order-neighbours", caption="Swaps of neighbours", columns=columns, rows=rows)


def blocks(model: Model) -> Table:
    """Return blocks of neighbours whose swaps do little."""
    rows = [[f"{b['first']} to {b['last']}", b["largest_swap"], b["shuffled"], b["free"]]
            for b in model["audit"]["blocks"]]  # fmt: skip
    columns = ("positions", "largest swap", "whole block shuffled", "free as a whole")
    caption = "Blocks within which each swap of neighbours does little"
    return Table(name="order-blocks", caption=caption, columns=columns, rows=rows)


# --- slices and checks -----------------------------------------------------------------------


def removed(variant: Mapping[str, Any]) -> str:
    """Return a variant's name: which residual connections are taken out."""
    return "as it is" if variant["removed"] == "none" else f"without {variant['removed']}"


def identity(model: Model) -> Table:
    """Return how well the token (or the place) is decoded, by what was taken out and by layer."""
    variants = model["audit"]["slices"]["variants"]
    named = variants[0]["layers"][0]["identity"] is not None
    rows = [
        [removed(v), output_of(x["layer"]), (x["identity"] if named else x["position"])["score"]]
        for v in variants
        for x in v["layers"]
    ]
    what = "its token" if named else "its place, R²"
    caption = "What is decoded from a state, by the residual connections that are taken out"
    return Table(name="slices-residuals", caption=caption, columns=("residuals", "state", what),
                 rows=rows)  # fmt: skip


def probes(model: Model) -> Table:
    """Return what a state of the model as it is tells."""
    rows = [
        [output_of(x["layer"]),
         *((x[p]["score"] if x[p] else None) for p in ("identity", "previous", "following")),
         x["identity"]["control"] if x["identity"] else None,
         x["position"]["score"], x["adjacency"]]
        for x in model["audit"]["slices"]["variants"][0]["layers"]
    ]  # fmt: skip
    columns = ("state", "its token", "previous", "next", "control", "place, R²", "adjacent")
    return Table(name="slices", caption="Probes of the model as it is", columns=columns, rows=rows)


def checks(model: Model) -> Table:
    """Return the self-checks of trace and audit."""
    rows: list[Row] = []
    trace, audit = model["trace"], model["audit"]
    if trace is not None:
        own = trace["self_check"]
        moved = own["max_logit_difference"]
        rows.append(["hooks leave the output as it is", moved, "0", moved == 0])
        rows.append(["heads sum to attention (relative)", own["max_head_sum_error"], "rounding",
                     None])  # fmt: skip
    for check in audit["checks"] if audit is not None else ():
        cell, colon, rest = check["name"].partition(":")
        name = f"{CELLS[cell]}:{rest}" if colon and cell in CELLS else check["name"]
        for key, words in CELLS.items():
            name = name.replace(f"{key} is ", f"{words} is ")
        must = f"{'at most' if check['must'] == 'stay' else 'more than'} {check['limit']:g}"
        rows.append([name, check["value"], must, check["passed"]])
    return Table(name="checks", caption="Self-checks", columns=("check", "value", "must be",
                 "passed"), rows=rows)  # fmt: skip


# --- all of them -----------------------------------------------------------------------------


def all_tables(model: Model) -> list[Table]:
    """Return every table that a model has, for export."""
    found = []
    if model["scan"] is not None:
        found.append(every_head(model))
    found += [*spectra(model), flows(model)]
    if model["trace"] is not None:
        found.append(all_depths(model))
        found += [attention_layers(model), attention_heads(model)]
        found += [agreement(model, main=True), agreement(model, main=False)]
    if model["orbits"] is not None:
        found.append(orbits(model))
    audit = model["audit"]
    if audit is not None:
        found += [f(model) for f in (cells, defects, swaps, neighbours, blocks)]
        if audit["slices"] is not None and audit["slices"]["variants"]:
            found += [identity(model), probes(model)]
    found.append(checks(model))
    return [table for table in found if table.rows]
