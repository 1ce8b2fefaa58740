"""Forensics of rotations, judged on models that were not used to choose anything.

Enters: a stream of small models (`_forensic_models.py`), real checkpoints. Leaves: counts of layers
right, wrong and unanswered, by kind of model and by steps of training, as JSON. Every model is
judged as it was trained; with the rows of all layers, and of each one alone, put where the other
pairing has them (wrong conversions); under a config that rotates every layer, and ones that leave
one rotated layer out; and by its losses, as it is and under a config with a wrong base. A layer
counts as trained if training moved its queries and keys by half of their size (`ENOUGH_MOVED`).

    python benchmarks/positions.py TEXT TEXT --runs DIR --stream seventh --models 78 --out FILE
"""

import argparse
import json
import math
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _forensic_models import EARLY, EARLY_FILE, STREAMS, is_trained, train_one
from safetensors.torch import load_file

from orbitlens.encodings.api import positions
from orbitlens.encodings.evidence import (
    Found,
    LayerEvidence,
    LayerPositions,
    layer_evidence,
    readings,
)
from orbitlens.encodings.options import PositionsOptions
from orbitlens.encodings.rows import coordinate_order
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.files import write_result
from orbitlens.heads.scores import ScoreWeights, load_scores
from orbitlens.lab.tasks.language import text
from orbitlens.running.model import Model, load

Truth = tuple[str, int] | None  # pairing and width; None: not rotated


def scores_of(model: Model) -> list[ScoreWeights]:
    """Return queries and keys of every layer of a decoder."""
    n_layers = model.architecture.stacks[0].n_layers
    return [load_scores(model.checkpoint, k) for k in range(n_layers)]


def read(
    scores: Sequence[ScoreWeights], known: dict[int, LayerEvidence] | None = None
) -> tuple[LayerPositions, ...]:
    """Return what the layers say; `known` keeps what was weighed, by identity, for a next time."""
    known = {} if known is None else known
    for layer, each in enumerate(scores):
        if id(each) not in known:
            known[id(each)] = layer_evidence(each, "decoder", layer)
    return readings([known[id(each)] for each in scores])


def variants(
    scores: list[ScoreWeights], truths: list[Truth]
) -> Iterator[tuple[str, list[ScoreWeights], list[Truth]]]:
    """Yield a model as trained, and with faults that conversions and configs have."""
    yield "as trained", scores, truths
    turned = [k for k, truth in enumerate(truths) if truth is not None]
    chosen = {"all layers converted": turned}
    if len(turned) > 1:
        chosen |= {f"layer {layer} converted": [layer] for layer in turned}
    for name, layers in chosen.items():
        pairs = [
            converted(s, t) if k in layers else (s, t)
            for k, (s, t) in enumerate(zip(scores, truths, strict=True))
        ]
        if layers:
            yield name, [s for s, _ in pairs], [t for _, t in pairs]
    if len(turned) < len(truths):
        whole = [
            s if t is not None else configured(s, True) for s, t in zip(scores, truths, strict=True)
        ]
        yield "config rotates all layers", whole, truths
    for layer in turned:
        without = [configured(s, False) if k == layer else s for k, s in enumerate(scores)]
        yield f"config leaves layer {layer} out", without, truths


def configured(scores: ScoreWeights, rotated: bool) -> ScoreWeights:
    """Return a layer whose config rotates it whole, or not at all."""
    d_head = scores.w_q.shape[-1]
    spec = RotarySpec(base=1e4, d_rotary=d_head, d_head=d_head, pairing=Pairing.HALVES)
    return replace(scores, spec=replace(scores.spec, rotary=spec if rotated else None))


def converted(scores: ScoreWeights, truth: Truth) -> tuple[ScoreWeights, Truth]:
    """Put the coordinates where the other pairing has them; the truth is then that pairing."""
    assert truth is not None
    pairing, width = Pairing(truth[0]), truth[1]
    order = coordinate_order(pairing, width, scores.w_q.shape[-1])
    moved = replace(scores, w_q=scores.w_q[..., order], w_k=scores.w_k[..., order])
    return moved, (pairing.other.value, width)


def outcome(found: LayerPositions, truth: Truth) -> str:
    """Return "right", "wrong" or "cannot tell"."""
    if found.found is Found.UNKNOWN:
        return "cannot tell"
    said = None if found.rotated is None else (found.rotated.pairing.value, found.rotated.width)
    return "right" if said == truth else "wrong"


def category(truth: Truth, d_head: int) -> str:
    """Name a rotation as the confusion matrix does."""
    if truth is None:
        return "not rotary"
    return f"{truth[0]}, {'whole' if truth[1] == d_head else 'part'}"


def confused(found: LayerPositions, truth: Truth) -> str:
    """Name what was said of a layer; a part of a head that is not the true one is told apart."""
    if found.found is Found.UNKNOWN:
        return "cannot tell"
    said = None if found.rotated is None else (found.rotated.pairing.value, found.rotated.width)
    name = category(said, found.d_head)
    is_other = said is not None and truth is not None and name == category(truth, found.d_head)
    return f"{name}, another" if is_other and said != truth else name


def judge(folder: Path, texts: list[Path]) -> Iterator[dict[str, Any]]:
    """Yield one row a layer, variant and step of training."""
    drawn = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    model = load(folder)
    truths: list[Truth] = [(drawn["pairing"], w) if w else None for w in drawn["d_rotary"]]
    keys = ("kind", "lr", "init", "weight_decay", "context", "base")
    common = {key: drawn[key] for key in keys} | {"model": folder.name}
    whole = scores_of(model)
    moved = [round(each, 3) for each in moved_by(folder, whole)]
    tried, known = list(variants(whole, truths)), dict[int, LayerEvidence]()  # all kept: ids stay
    for name, scores, expected in tried:
        for found, truth in zip(read(scores, known), expected, strict=True):
            yield (
                common
                | _row(found, truth)
                | {
                    "variant": name,
                    "steps": drawn["steps"],
                    "moved": moved[found.layer],
                    "category": category(truth, found.d_head),
                    "said": confused(found, truth),
                    "nats": round(found.nats, 2),
                    "margin": round(found.margin, 2),
                    "odds": round(found.odds, 2),
                    "balance": round(found.balance, 3),
                    "likeness": None if found.likeness is None else round(found.likeness, 2),
                }
            )
    yield from _early(folder, truths, common)
    if any(truths):
        yield from _by_running(folder, drawn, texts, common)


def _row(found: LayerPositions, truth: Truth) -> dict[str, Any]:
    return {
        "truth": truth,
        "layer": found.layer,
        "planes": (truth[1] if truth else found.d_head) // 2,
        "outcome": outcome(found, truth),
    }


WRONG_BASE = {500.0: 1e5, 1e4: 500.0, 1e5: 1e4, 1e6: 1e4}  # true base -> what the config says
OPTIONS = PositionsOptions(max_tokens=1024)


def _by_running(
    folder: Path, drawn: dict[str, Any], texts: list[Path], common: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what losses say of the model as it is, and under a config with a wrong base."""
    task = text(file=str(texts[drawn["text"]]), context=drawn["context"])
    ids = task.batch("valid", 0, 1024 // drawn["context"], 0).inputs.tolist()
    found = positions(folder, ids, options=OPTIONS)
    better = [trial.name for trial in found.trials if trial.is_better]
    row = common | {"variant": "losses as trained", "truth": drawn["base"], "better": better}
    yield row | {"outcome": "wrong" if better else "right"}
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "model"
        shutil.copytree(folder, copy)
        if not _with_base(copy / "config.json", WRONG_BASE[drawn["base"]]):
            return
        found = positions(copy, ids, options=OPTIONS)
    base = None if found.repair is None else found.repair.base
    said = "cannot tell" if base is None else "right" if base == drawn["base"] else "wrong"
    row = common | {"variant": "losses, wrong base", "truth": drawn["base"], "said": base}
    yield row | {"outcome": said}


def _with_base(file: Path, base: float) -> bool:
    """Write another base into a config; say whether it has one."""
    config = json.loads(file.read_text(encoding="utf-8"))
    for place, key in ((config, "rotary_base"), (config.get("rope_parameters"), "rope_theta")):
        if isinstance(place, dict) and key in place:
            place[key] = base
            file.write_text(json.dumps(config), encoding="utf-8")
            return True
    return False


def _early(folder: Path, truths: list[Truth], common: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what the same layers said after fewer steps."""
    for step in EARLY:
        for found, truth in zip(read(scores_at(folder, step)), truths, strict=True):
            yield common | _row(found, truth) | {"variant": "early", "steps": step}


def scores_at(folder: Path, step: int) -> list[ScoreWeights]:
    """Return queries and keys of every layer after fewer steps."""
    kept = load_file(folder / EARLY_FILE)
    names = {name: name.partition("/")[2] for name in kept if name.startswith(f"{step}/")}
    module = load(folder).module
    module.load_state_dict({names[n]: kept[n].float() for n in names}, strict=False)
    return scores_of(load(module))


def moved_by(folder: Path, now: Sequence[ScoreWeights]) -> Iterator[float]:
    """Yield how far training moved the queries and keys of a layer, in units of their first size.

    From the two weights alone, so that it is known before anything is read off them.
    """
    for first, last in zip(scores_at(folder, 0), now, strict=True):
        pairs = ((first.w_q, last.w_q), (first.w_k, last.w_k))
        change = sum(float((b - a).square().sum()) for a, b in pairs)
        yield math.sqrt(change / sum(float(a.square().sum()) for a, _ in pairs))


def real(path: str) -> Iterator[dict[str, Any]]:
    """Yield one row a layer of a checkpoint, whose config is taken to be right."""
    model = load(path)
    for stack in model.architecture.stacks:
        evidence = [
            layer_evidence(
                load_scores(model.checkpoint, k, stack=stack.name),
                stack.name,
                k,
                whole=stack.latent is not None,
            )
            for k in range(stack.n_layers)
        ]
        for found in readings(evidence):
            given = found.configured
            truth = None if given is None else (given.pairing.value, given.width)
            yield _row(found, truth) | {
                "variant": "real",
                "model": model.name,
                "nats": round(found.nats, 2),
            }


def counts(rows: Sequence[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """Return how many layers were right, wrong and unanswered, by the values of some keys."""
    table: dict[tuple[Any, ...], Counter[str]] = {}
    for row in rows:
        table.setdefault(tuple(row[key] for key in keys), Counter())[row["outcome"]] += 1
    return [
        dict(zip(keys, values, strict=True)) | {name: c[name] for name in OUTCOMES}
        for values, c in table.items()
    ]


OUTCOMES = ("right", "wrong", "cannot tell")
ENOUGH_PLANES = 8  # the goal of answers is for layers with as many,
ENOUGH_MOVED = 0.5  # of the size that weights began with, by training: before, they are random ones
KINDS_OF_FAULT = {  # variants of one kind, whichever layer it is: their first and last words
    ("layer", "converted"): "one layer converted",
    ("config", "out"): "config leaves a layer out",
}


def judged(folder: Path, texts: list[Path]) -> list[dict[str, Any]]:
    """Return the rows of a model; those that an earlier run has written are read."""
    stored = folder / "judged.json"
    if not stored.exists():
        rows = list(judge(folder, texts))
        write_result(stored, json.dumps(rows, indent=0).encode())
    found: list[dict[str, Any]] = json.loads(stored.read_text(encoding="utf-8"))
    return found


def summary(rows: Sequence[dict[str, Any]], reals: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the counts that the documentation shows."""
    running = [row for row in rows if row["variant"].startswith("losses")]
    faults = [row for row in rows if row["variant"] != "early" and row not in running]
    trained = [row for row in faults if row["variant"] == "as trained"]
    faults = [row | {"variant": fault_of(row["variant"])} for row in faults]
    many = [row for row in faults if row["planes"] >= ENOUGH_PLANES]
    moved = [row for row in many if row["moved"] >= ENOUGH_MOVED]
    early = {(row["model"], "early") for row in rows}
    return {
        "models": len({row["model"] for row in rows}),
        "models and variants": len({(r["model"], r["variant"]) for r in rows} - early),
        "counts": counts(faults, "variant"),
        "with 8 planes": counts(many, "variant"),
        "trained": {"moved": ENOUGH_MOVED, "counts": counts(moved, "variant")},
        "by running": counts(running, "variant"),
        "by kind": counts(trained, "kind"),
        "by start": counts(trained, "init", "lr"),
        "by steps": counts([r for r in rows if r["variant"] == "early"], "steps", "init"),
        "confusion": _tally(faults, "category", "said"),
        "real": counts(reals, "model"),
        "wrong": [row for row in [*faults, *running, *reals] if row["outcome"] == "wrong"],
        "layers": trained,
    }


def fault_of(variant: str) -> str:
    """Return the kind of a variant.

    >>> fault_of("layer 2 converted"), fault_of("all layers converted")
    ('one layer converted', 'all layers converted')
    """
    words = variant.split()
    return KINDS_OF_FAULT.get((words[0], words[-1]), variant)


def _tally(rows: Sequence[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    found = Counter(tuple(row[key] for key in keys) for row in rows)
    return [dict(zip(keys, key, strict=True)) | {"n": n} for key, n in found.items()]


def main() -> None:
    """Train what is missing, judge, and write counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, nargs=2, help="two UTF-8 texts")
    parser.add_argument("--runs", type=Path, required=True, help="where models are kept")
    parser.add_argument("--stream", choices=STREAMS, default="seventh")
    parser.add_argument("--models", type=int, default=78)
    parser.add_argument("--trained-only", action="store_true", help="leave out what is not there")
    parser.add_argument("--real", nargs="*", default=[], help="checkpoints, judged by their config")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    reals = [row for path in options.real for row in real(path)]
    for number in range(options.models):
        started = time.process_time()
        if options.trained_only and not is_trained(options.stream, number, options.runs):
            continue
        folder = train_one(options.stream, number, options.texts, options.runs)
        rows += judged(folder, options.texts)
        done = Counter(row["outcome"] for row in rows if row["variant"] != "early")
        spent = time.process_time() - started
        print(f"{number + 1}/{options.models} {spent:.0f} s {dict(done)}", flush=True)
        named = {"stream": options.stream, "texts": [path.name for path in options.texts]}
        result = named | summary(rows, reals)
        write_result(options.out, (json.dumps(result, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
