"""Tables of docs/reach.md, from the stored run of benchmarks/reach.py."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

from generated.tables import table
from scipy.stats import spearmanr

STORED = Path(__file__).resolve().parents[1] / "reach.json"
RATIOS = (1.5, 2.0, 3.0, 4.0)
JUDGED = (2.0, 4.0)
SHOWN = {
    "stand-in": "**stand-ins** (chosen)",
    "places alone": "stand-ins, far places alone",
    "counts alone": "stand-ins, counts alone",
    "unfinished planes": "share of scores in unfinished planes",
    "attention beyond": "attention beyond the context, by T7",
    "loss of sharpness": "loss of sharpness, by T7",
}
ENCODINGS = {"stories260K-llama-hf": "rotary-10000"}
Row = dict[str, Any]
Predictor = Callable[[Row, int], float | None]


def stored() -> list[Row]:
    """Return one row a model."""
    rows: list[Row] = json.loads(STORED.read_text(encoding="utf-8"))
    return rows


def chosen_on(row: Row) -> bool:
    """Say whether the predictor was chosen on a model."""
    return bool(row["chosen_on"])


def judging(rows: Sequence[Row]) -> list[Row]:
    """Return the models that judge: the longer trained context, and those of others."""
    return [row for row in rows if row["kind"] == "real" or row["context"] == 64]


def kind_of(row: Row) -> str:
    """Return a model's encoding, as the lab's models name theirs."""
    if row["kind"] != "real":
        return str(row["kind"])
    last = row["name"].rpartition("-")[2]
    return ENCODINGS.get(row["name"]) or ("rotary-10000" if last == "rotary" else last)


def measured(row: Row, k: int, part: str = "test") -> float:
    """Return the measured increase at the ratio of number k."""
    return float(row[part]["increase"][k])


def rank_correlation(rows: Sequence[Row], predict: Predictor, k: int) -> str:
    """Return Spearman's correlation with what was measured; a dash where it says nothing."""
    pairs = [(predict(row, k), measured(row, k)) for row in rows]
    known = [(said, found) for said, found in pairs if said is not None]
    if len(known) < 3 or len({said for said, _ in known}) < 2:
        return "–"
    return f"{spearmanr(*zip(*known, strict=True))[0]:.2f}"


def error(rows: Sequence[Row], predict: Predictor, k: int) -> str:
    """Return the mean absolute difference to what was measured, in nats."""
    gaps = [abs(said - measured(row, k)) for row in rows if (said := predict(row, k)) is not None]
    return f"{mean(gaps):.2f}" if gaps else "–"


def _stored_predictor(name: str) -> Predictor:
    return lambda row, k: row["predicted"].get(name, [None] * len(RATIOS))[k]


def by_kind(rows: Sequence[Row], *, with_base: bool) -> Predictor:
    """Return the baseline: what models of the same encoding lost, of those chosen on."""

    def name(row: Row) -> str:
        return kind_of(row) if with_base else kind_of(row).partition("-")[0]

    first = [row for row in rows if chosen_on(row)]
    return lambda row, k: mean(measured(one, k) for one in first if name(one) == name(row))


def by_seed(rows: Sequence[Row]) -> Predictor:
    """Return the ceiling: what the same model of another seed loses."""

    def predict(row: Row, k: int) -> float | None:
        alike = [
            one
            for one in rows
            if (one["kind"], one["context"]) == (row["kind"], row["context"])
            and one["seed"] != row["seed"]
            and one["kind"] != "real"
        ]
        return measured(alike[0], k) if alike else None

    return predict


def predictors() -> str:
    """Return rank correlations of each predictor on the models that judge."""
    rows = stored()
    judged = judging(rows)
    rotary = [row for row in judged if kind_of(row).startswith("rotary")]
    lab = [row for row in judged if row["kind"] != "real"]
    given: list[tuple[str, Predictor]] = [
        (shown, _stored_predictor(name)) for name, shown in SHOWN.items()
    ]
    given += [
        ("baseline: encoding alone", by_kind(rows, with_base=False)),
        ("baseline: encoding and base", by_kind(rows, with_base=True)),
        ("ceiling: the same on another text", lambda row, k: measured(row, k, "again")),
        ("ceiling: another seed (lab models)", by_seed(rows)),
    ]
    scaled = {"stand-in", "places alone", "counts alone"}
    body = []
    for (name, predict), key in zip(given, [*SHOWN, "b", "b", "c", "c"], strict=True):
        in_nats = key in scaled or key in {"b", "c"}
        line = [name]
        for ratio in JUDGED:
            k = RATIOS.index(ratio)
            line += [rank_correlation(some, predict, k) for some in (judged, lab, rotary)]
            line.append(error(judged, predict, k) if in_nats else "–")
        body.append(line)
    head = ["From"]
    for ratio in JUDGED:
        head += [f"{ratio:g}×: all", "lab", "rotary", "error, nats"]
    count = (
        f"{len(judged)} models judge, {len(lab)} of them of the lab, {len(rotary)} rotary; rank "
        "correlations with the measured increase.\n\n"
    )
    return count + table(head, body)


def shapes() -> str:
    """Return what the shape of stand-ins was chosen among."""
    first = [row for row in stored() if chosen_on(row)]
    names = [name for name in first[0]["predicted"] if name.startswith("near")]
    body = []
    for name in ["stand-in", *names]:
        predict = _stored_predictor(name)
        numbers = []
        for ratio in JUDGED:
            k = RATIOS.index(ratio)
            numbers += [rank_correlation(first, predict, k), error(first, predict, k)]
        body.append(["near quarter, 6 blocks (chosen)" if name == "stand-in" else name, *numbers])
    head = ("Shape", "2×: rank", "error, nats", "4×: rank", "error, nats")
    return f"{len(first)} models.\n\n" + table(head, body)


def models() -> str:
    """Return every model that judges: predicted and measured."""
    body = []
    for row in sorted(judging(stored()), key=lambda row: (row["kind"] == "real", row["name"])):
        line = [row["name"], row["context"]]
        for ratio in JUDGED:
            k = RATIOS.index(ratio)
            errors = row["test"]["error"][k]
            line += [
                f"{row['predicted']['stand-in'][k]:+.2f}",
                f"{measured(row, k):+.2f} ± {errors:.2f}",
            ]
        body.append(line)
    head = ("Model", "context", "2×: predicted", "measured", "4×: predicted", "measured")
    return table(head, body)


def regrets(rows: Sequence[Row], ratio: str) -> dict[str, list[float]]:
    """Return nats above the best of the grid: of the advice, and of rules that look at nothing."""
    found: dict[str, list[float]] = {"advice": [], "do nothing": [], "always NTK": []}
    found["always YaRN"] = []
    for row in rows:
        advice = row["advice"].get(ratio)
        if advice is None:
            continue
        losses = advice["losses"]
        best = min(losses.values())
        rules = {
            "advice": advice["chosen"],
            "do nothing": "as it is",
            "always NTK": f"ntk {ratio}",
            "always YaRN": f"yarn {ratio}",
        }
        for name, chosen in rules.items():
            found[name].append(losses[chosen] - best)
    return found


def advice() -> str:
    """Return regrets of the advice and of fixed rules."""
    rows = stored()
    sets = {
        "chosen on (context 32)": [row for row in rows if chosen_on(row)],
        "lab, context 64": [row for row in judging(rows) if row["kind"] != "real"],
        "the zoo, stories260K": [row for row in rows if row["kind"] == "real"],
    }
    body = []
    for name, some in sets.items():
        for ratio in JUDGED:
            found = regrets(some, f"{ratio:g}")
            if not found["advice"]:
                continue
            numbers = [f"{median(v):.3f} ({max(v):.3f})" for v in found.values()]
            body.append([name, f"{ratio:g}×", len(found["advice"]), *numbers])
    judged = judging(rows)
    both = [value for ratio in ("2", "4") for value in regrets(judged, ratio)["advice"]]
    head = ("Models", "context", "count", "advice", "do nothing", "always NTK", "always YaRN")
    closing = (
        f"\n\nOver all {len(both)} cases that judge, the advice's median regret is "
        f"{median(both):.3f} nats a token."
    )
    return table(head, body) + closing
