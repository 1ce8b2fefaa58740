"""Forensics of rotations, judged on models that were not used to choose anything.

Enters: a stream of small models (`_forensic_models.py`), real checkpoints. Leaves: counts of layers
right, wrong and unanswered, by kind of model and by steps of training, as JSON. Every model is
judged as it was trained, with the rows of all layers put where the other pairing has them (a wrong
conversion), with those of one layer so, and with a config that rotates every layer.

    python benchmarks/positions.py TEXT TEXT --runs DIR --stream final --models 60 --out FILE
"""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from _forensic_models import EARLY, EARLY_FILE, train_one
from safetensors.torch import load_file

from orbitlens.encodings.evidence import Found, LayerPositions, layer_evidence, readings
from orbitlens.encodings.rows import coordinate_order
from orbitlens.families.architecture import Pairing
from orbitlens.heads.scores import ScoreWeights, load_scores
from orbitlens.running.model import Model, load

Truth = tuple[str, int] | None  # pairing and width; None: not rotated


def scores_of(model: Model) -> list[ScoreWeights]:
    """Return queries and keys of every layer of a decoder."""
    n_layers = model.architecture.stacks[0].n_layers
    return [load_scores(model.checkpoint, k) for k in range(n_layers)]


def read(scores: Sequence[ScoreWeights]) -> tuple[LayerPositions, ...]:
    """Return what the layers say."""
    return readings([layer_evidence(s, "decoder", k) for k, s in enumerate(scores)])


def variants(
    scores: list[ScoreWeights], truths: list[Truth]
) -> Iterator[tuple[str, list[ScoreWeights], list[Truth]]]:
    """Yield a model as trained, and with faults that conversions make."""
    yield "as trained", scores, truths
    turned = [k for k, truth in enumerate(truths) if truth is not None]
    if not turned:
        return
    for name, chosen in (("all layers converted", turned), ("one layer converted", turned[-1:])):
        pairs = [
            converted(s, t) if k in chosen else (s, t)
            for k, (s, t) in enumerate(zip(scores, truths, strict=True))
        ]
        yield name, [s for s, _ in pairs], [t for _, t in pairs]


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


def judge(folder: Path) -> Iterator[dict[str, Any]]:
    """Yield one row a layer, variant and step of training."""
    drawn = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
    model = load(folder)
    truths: list[Truth] = [(drawn["pairing"], w) if w else None for w in drawn["d_rotary"]]
    common = {key: drawn[key] for key in ("kind", "lr", "init", "weight_decay", "context", "base")}
    whole = scores_of(model)
    for name, scores, expected in variants(whole, truths):
        for found, truth in zip(read(scores), expected, strict=True):
            row = {"variant": name, "steps": drawn["steps"], "truth": truth}
            said = found.found.value if found.rotated is None else str(found.rotated)
            yield (
                common
                | row
                | {
                    "model": folder.name,
                    "layer": found.layer,
                    "planes": (truth[1] if truth else found.d_head) // 2,
                    "outcome": outcome(found, truth),
                    "said": said,
                    "nats": round(found.nats, 2),
                    "margin": round(found.margin, 2),
                    "balance": round(found.balance, 3),
                }
            )
    yield from _early(folder, model, truths, common)


def _early(
    folder: Path, model: Model, truths: list[Truth], common: dict[str, Any]
) -> Iterator[dict[str, Any]]:
    """Yield what the same layers said after fewer steps."""
    kept = load_file(folder / EARLY_FILE)
    for step in EARLY:
        part = {
            name.partition("/")[2]: v for name, v in kept.items() if name.startswith(f"{step}/")
        }
        module = model.module
        module.load_state_dict({k: v.float() for k, v in part.items()}, strict=False)
        for found, truth in zip(read(scores_of(load(module))), truths, strict=True):
            yield common | {
                "variant": "early",
                "steps": step,
                "truth": truth,
                "model": folder.name,
                "layer": found.layer,
                "planes": (truth[1] if truth else found.d_head) // 2,
                "outcome": outcome(found, truth),
            }


def real(path: str) -> Iterator[dict[str, Any]]:
    """Yield one row a layer of a checkpoint, whose config is taken to be right."""
    model = load(path)
    for stack in model.architecture.stacks:
        evidence = [
            layer_evidence(load_scores(model.checkpoint, k, stack=stack.name), stack.name, k)
            for k in range(stack.n_layers)
        ]
        for found in readings(evidence):
            given = found.configured
            truth = None if given is None else (given.pairing.value, given.width)
            yield {
                "variant": "real",
                "model": model.name,
                "layer": found.layer,
                "truth": truth,
                "planes": (truth[1] if truth else found.d_head) // 2,
                "outcome": outcome(found, truth),
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


def main() -> None:
    """Train what is missing, judge, and write counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("texts", type=Path, nargs=2, help="two UTF-8 texts")
    parser.add_argument("--runs", type=Path, required=True, help="where models are kept")
    parser.add_argument("--stream", choices=("choose", "judge", "final"), default="final")
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--real", nargs="*", default=[], help="checkpoints, judged by their config")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for number in range(options.models):
        folder = train_one(options.stream, number, options.texts, options.runs)
        rows += judge(folder)
        done = [row for row in rows if row["variant"] != "early"]
        print(f"{number + 1}/{options.models}", Counter(row["outcome"] for row in done), flush=True)
    faults = [row for row in rows if row["variant"] != "early"]
    reals = [row for path in options.real for row in real(path)]
    result = {
        "stream": options.stream,
        "models": options.models,
        "counts": counts(faults, "variant"),
        "by kind": counts([r for r in faults if r["variant"] == "as trained"], "kind"),
        "by start": counts([r for r in faults if r["variant"] == "as trained"], "init", "lr"),
        "by steps": counts([r for r in rows if r["variant"] == "early"], "steps", "init"),
        "real": counts(reals, "model"),
        "wrong": [row for row in faults + reals if row["outcome"] == "wrong"],
        "layers": [r for r in faults if r["variant"] == "as trained"],
    }
    options.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
