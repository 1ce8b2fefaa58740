"""The reach of contexts: predicted from short text, then measured, on lab models and real ones.

Enters: a text, the runs of `_reach_models.py`, real checkpoints. Leaves: one row a model in a JSON
file, appended as they come: what each predictor says (computed first, from contexts no longer than
the trained one), the loss increase that is then measured on another part of the text, the same on a
third part (the ceiling), and for rotary models the loss of every scaling beside the one advised.

    python benchmarks/reach.py TEXT --runs DIR --out FILE [--real MODEL:CONTEXT:TEXT ...] [--no-lab]
"""

import argparse
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from _reach_models import all_runs
from torch import Tensor

from orbitlens.encodings import stand_in
from orbitlens.encodings.advice import advise
from orbitlens.encodings.head_reach import heads_reach
from orbitlens.encodings.long_run import by_position, increases, row_losses
from orbitlens.encodings.reach import RATIOS
from orbitlens.encodings.scalings import all_scalings, one_encoding, scaled
from orbitlens.encodings.stand_in import StandIns, StandInShape, stand_in_losses, stand_ins
from orbitlens.errors import InputError
from orbitlens.running.model import Model, load
from orbitlens.running.texts import plain_ids

SHAPES = {  # what the shape of stand-ins was chosen among, on the first models
    "near half, 2 blocks": StandInShape(near=0.5, judged=0.25, blocks=2),
    "near half, 4 blocks": StandInShape(near=0.5, judged=0.25, blocks=4),
    "near half, 7 blocks": StandInShape(near=0.5, judged=0.25, blocks=7),
    "near third, 5 blocks": StandInShape(near=0.34, judged=0.17, blocks=5),
}
PARTS = {"short": (0.90, 0.95), "test": (0.95, 1.0), "again": (0.85, 0.90)}  # of a text
N_SHORT, SHORT_TOKENS, LONG_TOKENS = 64, 8192, 16_384
STEPS = (2.0, 4.0)  # of the trained context: what is judged


def rows_of(ids: Tensor, part: str, length: int, count: int) -> Tensor:
    """Return windows of a part of a text, evenly spread; one token more than `length` each."""
    low, high = (int(share * len(ids)) for share in PARTS[part])
    starts = torch.linspace(low, high - length - 1, count).long()
    return ids[starts[:, None] + torch.arange(length + 1)]


def with_longer_table(model: Model, n_rows: int) -> Model:
    """Lengthen a table of learned positions by rows as they were first drawn: never trained."""
    table = getattr(getattr(model.module, "model", None), "embed_positions", None)
    if table is None:
        return model
    config = model.module.config
    fresh = torch.empty(n_rows, table.weight.shape[1])
    fresh.normal_(std=config.initializer_range, generator=torch.Generator().manual_seed(0))
    fresh[: len(table.weight)] = table.weight.data
    model.module.model.embed_positions = torch.nn.Embedding.from_pretrained(fresh)
    config.max_position_embeddings = n_rows
    return load(model.module, tokenizer=model.tokenizer)


# --- predictors --------------------------------------------------------------------------------


def predictions(
    model: Model, short: Tensor, trained: int, shapes: Mapping[str, StandInShape]
) -> dict[str, list[float | None]]:
    """Return what each predictor says, at each ratio."""
    said = {name: _stand_in(model, short, trained, shape) for name, shape in shapes.items()}
    said["stand-in"] = _stand_in(model, short, trained, StandInShape())
    plain_counts, plain_places = stand_in.log_counts, stand_in.far_positions
    n = short.shape[1] - 1
    stand_in.log_counts = lambda made, length: torch.zeros(n, n)
    said["places alone"] = _stand_in(model, short, trained, StandInShape())
    stand_in.log_counts = plain_counts
    stand_in.far_positions = lambda made, length, generator: torch.arange(n).expand(
        len(made.rows), n
    )
    said["counts alone"] = _stand_in(model, short, trained, StandInShape())
    stand_in.far_positions = plain_places
    return said | _from_heads(model, short, trained)


def _stand_in(model: Model, short: Tensor, trained: int, shape: StandInShape) -> list[float | None]:
    generator = torch.Generator().manual_seed(0)
    made: StandIns = stand_ins(short, generator, shape)
    base = stand_in_losses(model, made, None, generator).mean()
    return [
        float(stand_in_losses(model, made, round(ratio * trained), generator).mean() - base)
        for ratio in RATIOS
    ]


def _from_heads(model: Model, short: Tensor, trained: int) -> dict[str, list[float | None]]:
    """Return what weights and statistics say alone: means over heads."""
    by_length = {
        ratio: list(heads_reach(model, short[:16, :-1], trained, (trained, round(ratio * trained))))
        for ratio in STEPS
    }

    def mean(value: Callable[[Any], float]) -> list[float | None]:
        means = {r: sum(map(value, heads)) / len(heads) for r, heads in by_length.items()}
        return [means.get(ratio) for ratio in RATIOS]

    return {
        "unfinished planes": mean(lambda head: head.unfinished or 0.0),
        "attention beyond": mean(lambda head: head.beyond),
        "loss of sharpness": mean(lambda head: head.sharpness[0] - head.sharpness[-1]),
    }


# --- measured ----------------------------------------------------------------------------------


def measured(model: Model, ids: Tensor, part: str, trained: int) -> dict[str, Any]:
    """Return the loss increase at each ratio, its standard error, and the loss by position."""
    length = round(max(RATIOS) * trained)
    rows = rows_of(ids, part, length, max(2, LONG_TOKENS // length))
    found = increases(model, rows, trained, RATIOS)
    ends, losses = by_position(row_losses(model, rows), 32)
    return {
        "increase": [float(x.mean()) for x in found],
        "error": [float(x.std() / len(x) ** 0.5) for x in found],
        "positions": ends.tolist(),
        "losses": losses.tolist(),
    }


def scaling_losses(model: Model, ids: Tensor, trained: int, ratio: float) -> dict[str, float]:
    """Return the mean loss over long rows under every scaling of a grid."""
    plain = one_encoding(model.architecture.stacks[0])
    length = round(ratio * trained)
    rows = rows_of(ids, "test", length, max(2, LONG_TOKENS // 3 // length))
    found = {}
    for each in all_scalings(plain, trained):
        with scaled(model, plain, each):
            found[each.name] = float(row_losses(model, rows).mean())
    return found


def judge(
    model: Model, ids: Tensor, trained: int, shapes: Mapping[str, StandInShape]
) -> dict[str, Any]:
    """Return one model's row: predicted first, then measured."""
    short = rows_of(ids, "short", trained, max(8, min(N_SHORT, SHORT_TOKENS // trained)))
    with model.evaluating():
        row: dict[str, Any] = {"predicted": predictions(model, short, trained, shapes)}
        try:
            advised = {r: advise(model, short[::2], trained, r) for r in STEPS}
        except InputError:
            advised = {}
        row |= {part: measured(model, ids, part, trained) for part in ("test", "again")}
        row["advice"] = {
            f"{ratio:g}": {
                "chosen": advice.chosen,
                "predicted": {trial.name: trial.predicted for trial in advice.trials},
                "losses": scaling_losses(model, ids, trained, ratio),
            }
            for ratio, advice in advised.items()
        }
    return row


def rounded(value: Any) -> Any:
    """Return numbers with five digits: what a file needs."""
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return round(value, 5) if isinstance(value, float) else value


def keep(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write all rows so far."""
    text = ",\n".join(json.dumps(row, sort_keys=True) for row in rows)
    path.write_text(f"[\n{text}\n]\n", encoding="utf-8")


def asked_for(
    text: Path, runs: Path, real: Sequence[str], *, lab: bool
) -> Iterator[tuple[dict[str, Any], Callable[[], Any], Path]]:
    """Yield what is known of every model, how to get it (trained where it is not), and its text."""
    for run in all_runs(text) if lab else ():
        known = {"name": run.name, "kind": run.kind, "context": run.context, "seed": run.seed}
        yield known | {"chosen_on": run.chosen_on}, partial(run.trained, runs), text
    for asked in real:
        name, context, file = asked.split(":")
        known = {"name": Path(name).name, "kind": "real", "context": int(context), "seed": 0}
        yield known | {"chosen_on": False}, partial(str, name), Path(file)


def main() -> None:
    """Judge what is trained and not judged yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--real", nargs="*", default=[], help="MODEL:CONTEXT:TEXT")
    parser.add_argument("--no-lab", dest="lab", action="store_false", help="real models alone")
    given = parser.parse_args()
    rows = json.loads(given.out.read_text("utf-8")) if given.out.exists() else []
    done = {row["name"] for row in rows}
    for known, path, text in asked_for(given.text, given.runs, given.real, lab=given.lab):
        if known["name"] in done:
            continue
        trained = known["context"]
        model = with_longer_table(load(path()), round(max(RATIOS) * trained))
        ids = torch.tensor(plain_ids(model.tokenizer, text.read_text("utf-8")))
        shapes = SHAPES if known["chosen_on"] else {}
        rows.append(rounded(known | judge(model, ids, trained, shapes)))
        keep(given.out, rows)
        last = rows[-1]
        print(known["name"], last["predicted"]["stand-in"], last["test"]["increase"], flush=True)


if __name__ == "__main__":
    main()
