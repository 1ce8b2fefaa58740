"""Claims 1 and 2 on trained weights: the zoo's models and those the user names.

Enters: a bench. Leaves: outcomes. Encoding and mask are switched off as in `orbitlens audit`; one
layer is the model cut off behind its first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError, UnknownFamilyError
from orbitlens.order import comparing, sensitivity
from orbitlens.order.checks import STILL, relative
from orbitlens.order.permutations import shuffles
from orbitlens.order.questions import subject_for
from orbitlens.order.subject import Cell, Subject, run
from orbitlens.running.loading import model_class
from orbitlens.running.model import Model, load
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.models import NO_MODELS, model_names, order_samples

N_SAMPLES = 4


@dataclass(frozen=True, kw_only=True)
class Reading:
    """By how much order moves a model's prediction in each cell it can reach."""

    model: str
    family: str
    causal: bool
    encoding: bool  # whether anything tells positions apart
    cells: dict[str, float]
    one_layer: float | None  # without encoding, causal, cut behind the first layer
    missing: dict[str, str]

    def row(self) -> dict[str, Any]:
        """Return it as plain data."""
        return dict(vars(self))


def readings(bench: Bench) -> tuple[list[Reading], dict[str, str]]:
    """Return a reading a model, and the models that could not be read with the reason."""

    def make() -> tuple[list[Reading], dict[str, str]]:
        rows, missing = [], {}
        names = model_names(bench)
        for number, name in enumerate(names):
            opened = load(name)
            try:
                rows.append(_reading(bench, opened))
            except (InputError, UnknownFamilyError) as error:
                missing[opened.name] = str(error)
            bench.step((number + 1) / len(names))
        return rows, missing

    return bench.once("real models", make)


def _reading(bench: Bench, opened: Model) -> Reading:
    generator = bench.generator("order")
    inputs = order_samples(opened, N_SAMPLES, generator)
    subject = subject_for(opened, opened.module, inputs)
    samples = comparing.Bench(subject=subject, items=inputs.items, generator=generator)
    n_items = inputs.items.shape[1]
    perms = shuffles(n_items, subject.movable(n_items), bench.pick(3, 12, 48), generator)
    cells = {cell.value: order_change(subject, inputs.items, cell, perms) for cell in subject.cells}
    obstacles = {cell.value: subject.obstacle(cell) for cell in Cell}
    one = None
    if subject.feed.causal and Cell.NOPE_CAUSAL in subject.cells:
        short = subject_for(opened, _first_layer(opened), inputs)
        one = order_change(short, inputs.items, Cell.NOPE_CAUSAL, perms)
    return Reading(
        model=opened.name,
        family=subject.family,
        causal=subject.feed.causal,
        encoding=(sensitivity.encoding_effect(samples) or 0.0) > STILL,
        cells=cells,
        one_layer=one,
        missing={name: why for name, why in obstacles.items() if why is not None},
    )


def order_change(subject: Subject, items: Tensor, cell: Cell, perms: Tensor) -> float:
    """Return the largest relative change of the prediction under the permutations."""
    start = run(subject, items, cell).prediction
    return max(relative(start, run(subject, items[:, perm], cell).prediction) for perm in perms)


def _first_layer(opened: Model) -> Any:  # noqa: ANN401 - a model of transformers
    """Return the model with its first layer only."""
    folder = Path(opened.checkpoint.path)
    model = model_class(folder, "declared").from_pretrained(
        folder,
        local_files_only=True,
        use_safetensors=True,
        dtype=torch.float32,
        attn_implementation="sdpa",
        num_hidden_layers=1,
    )
    return model.eval()


def _outcome(
    values: Sequence[float], control: Sequence[float], bench: Bench, *, top: bool
) -> Outcome:
    rows, missing = readings(bench)
    if not values:
        return Outcome(
            obstacle=NO_MODELS if not rows else "no model can be brought into that state"
        )
    first, second = (
        (estimate.largest, estimate.smallest) if top else (estimate.smallest, estimate.largest)
    )
    return Outcome(
        result=first(values, of="models"),
        control=second(control, of="models"),
        data={"models": [row.row() for row in rows], "missing": missing},
    )


def blind_without_both(bench: Bench) -> Outcome:
    """1b: without encoding and mask; control: the models as they are."""
    rows, _ = readings(bench)
    reached = [row for row in rows if Cell.NOPE_FULL in row.cells]
    own = [row.cells[Cell.PE_CAUSAL if row.causal else Cell.PE_FULL] for row in reached]
    return _outcome([row.cells[Cell.NOPE_FULL] for row in reached], own, bench, top=True)


def either_breaks(bench: Bench) -> Outcome:
    """2e: with the encoding alone and with the mask alone, the smaller; control: neither."""
    rows, _ = readings(bench)
    reached = [row for row in rows if Cell.NOPE_FULL in row.cells]
    values = [row.cells[Cell.PE_FULL] for row in reached if row.encoding]
    values += [row.cells[Cell.NOPE_CAUSAL] for row in reached if row.causal]
    return _outcome(values, [row.cells[Cell.NOPE_FULL] for row in reached], bench, top=False)


def one_layer_is_blind(bench: Bench) -> Outcome:
    """2f: causal, no encoding, the first layer only; control: all layers."""
    rows, _ = readings(bench)
    reached = [row for row in rows if row.one_layer is not None]
    values = [row.one_layer for row in reached if row.one_layer is not None]
    return _outcome(values, [row.cells[Cell.NOPE_CAUSAL] for row in reached], bench, top=True)
