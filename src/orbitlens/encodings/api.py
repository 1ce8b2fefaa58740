"""`positions`: was a model rotated as it was trained? From its weights, and tested by running it.

Enters: a model, and a text where losses are wanted. Leaves: a `Positions`. Without a text nothing
is run, and of the weights only those of queries and keys are read.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.load import read_config
from orbitlens.encodings.changes import Change
from orbitlens.encodings.config_repair import repaired_config
from orbitlens.encodings.evidence import Found, LayerPositions, layer_evidence, readings
from orbitlens.encodings.notes import reading_notes
from orbitlens.encodings.options import PositionsOptions
from orbitlens.encodings.positions_result import Positions, Repair
from orbitlens.encodings.reach import reach_of
from orbitlens.encodings.repair import write_repaired
from orbitlens.encodings.rows import Order, coordinate_order, row_orders
from orbitlens.encodings.tables import TableReading, table_reading
from orbitlens.encodings.trial import CERTAIN, HypothesisTrial, trials
from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.families.registry import FAMILIES
from orbitlens.heads.layers import position_table
from orbitlens.heads.scores import ScoreWeights, load_scores, score_tensors, unreadable
from orbitlens.running.batches import batches_of, limits_for
from orbitlens.running.info import model_info, reading_cost
from orbitlens.running.inputs import Batch, inputs_of
from orbitlens.running.model import Model, load
from orbitlens.running.threads import threads_for, threads_for_layers

Progress = Callable[[int, int | None], None]
AS_WEIGHTS_SAY = "as the weights say"
USUAL_BASE = 1e4  # of Llama, GPT-NeoX and most others
MOST_SINGLE = 8  # layers that are tried one by one


def positions(
    model: Any,  # noqa: ANN401 - a `Model`, or what `load` takes
    text: Any = None,  # noqa: ANN401 - what `trace` takes
    *,
    repair_to: str | Path | None = None,
    options: PositionsOptions | None = None,
    progress: Progress | None = None,
) -> Positions:
    """Say whether a model's rotary encoding is the one it was trained with, layer by layer.

    Args:
        model: a `Model`, or anything `load` takes.
        text: a string, strings, a path object or token ids, on which losses under each hypothesis
            are measured. Without it nothing is run.
        repair_to: a folder that does not exist yet: a copy of the checkpoint with rows of queries
            and keys in the order they were trained for, or the setting of the config that was at
            fault put right, is written there, if the loss on the text is lower for it.
        options: shuffles for p-values, bases to try, how much to run; with `reach`, also how far
            a context reaches.
        progress: called with what is done and of how much.

    Raises:
        InputError: the text does not fit the model, or there is nothing to repair.
        CheckpointError: a tensor is broken, or holds NaN or infinity.
    """
    chosen = options or PositionsOptions()
    if chosen.layers is not None and (text is not None or repair_to is not None):
        raise InputError("some layers were asked for: what is run or repaired is the whole model.")
    opened = load(model)
    started = time.perf_counter()
    with threads_for_layers(opened.architecture.widest):
        layers, flags = _layers(opened, chosen, progress)
    tried: tuple[HypothesisTrial, ...] = ()
    n_tokens, shown = 0, None
    if text is not None:
        batches, shown = _batches(opened.running, text, chosen)
        n_tokens = sum(batch["input_ids"].numel() for batch in batches)
        with threads_for(opened.n_parameters):
            tried = trials(opened.running, batches, _changes(opened, layers, chosen))
    repair = _repair(opened, layers, tried)
    if repair_to is not None:
        repair = _written(opened, repair, Path(repair_to))
    read = _bytes_read(opened, [(layer.stack, layer.layer) for layer in layers])
    reach = None if chosen.reach is None else reach_of(opened, text, chosen.reach, progress)
    return Positions(
        model=model_info(opened.checkpoint),
        layers=layers,
        table=_table(opened),
        trials=tried,
        repair=repair,
        text=shown,
        n_tokens=n_tokens,
        cost=reading_cost(opened.checkpoint, started=started, n_bytes=read),
        flags=(*flags, *opened.notes),
        reach=reach,
    )


# --- from the weights ------------------------------------------------------------------------


def _layers(
    model: Model, options: PositionsOptions, progress: Progress | None
) -> tuple[tuple[LayerPositions, ...], tuple[str, ...]]:
    places, flags = _readable(model, options.layers)
    found = []
    for (stack, index), scores in zip(places, _read_ahead(model, places), strict=True):
        found.append(
            layer_evidence(
                scores,
                stack.name,
                index,
                whole=stack.latent is not None,
                shuffles=options.shuffles,
                seed=options.seed,
            )
        )
        if progress is not None:
            progress(len(found), len(places))
    return readings(found), tuple(dict.fromkeys((*flags, *reading_notes(model.checkpoint))))


def _readable(
    model: Model, wanted: Sequence[int] | None
) -> tuple[list[tuple[Stack, int]], list[str]]:
    """Return the layers whose queries and keys can be read, and why others cannot.

    Raises:
        InputError: layers were asked for that the model does not have.
    """
    deepest = max(stack.n_layers for stack in model.architecture.stacks)
    missing = sorted(set(wanted or ()) - set(range(deepest)))
    if missing:
        raise InputError(
            f"layers {missing} were asked for; this model has layers 0 to {deepest - 1}."
        )
    places: list[tuple[Stack, int]] = []
    flags = []
    for stack in model.architecture.stacks:
        if stack.d_head < 2:
            flags.append(f"heads of the {stack.name} have one coordinate: nothing could be turned")
        elif (why := unreadable(stack)) is not None:
            flags.append(f"the {stack.name} was not read: {why}")
        else:
            chosen = (k for k in range(stack.n_layers) if wanted is None or k in wanted)
            places += [(stack, index) for index in chosen]
    return places, flags


def _read_ahead(model: Model, places: Sequence[tuple[Stack, int]]) -> Iterator[ScoreWeights]:
    """Yield the weights of layers; while one is worked on, the next is read."""
    with ThreadPoolExecutor(max_workers=1) as reader:
        waiting: deque[Future[ScoreWeights]] = deque()
        for stack, index in places:
            waiting.append(reader.submit(load_scores, model.checkpoint, index, stack=stack.name))
            if len(waiting) > 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _table(model: Model) -> TableReading | None:
    for stack in model.architecture.stacks:
        if "positions" in stack.shared_tensors:
            return table_reading(position_table(model.checkpoint, stack=stack.name))
    return None


def _bytes_read(model: Model, places: Sequence[tuple[str, int]]) -> int:
    names = {
        name
        for stack, index in places
        for name in score_tensors(model.checkpoint.stack(stack), index)
    }
    return sum(model.checkpoint.source.tensors[name].n_bytes for name in names)


# --- by running ------------------------------------------------------------------------------


def _batches(model: Model, text: Any, options: PositionsOptions) -> tuple[list[Batch], str]:  # noqa: ANN401
    inputs = inputs_of(model, text, seed=options.seed)
    limits = limits_for(
        model, context=options.context, batch=options.batch, max_tokens=options.max_tokens
    )
    batches = list(batches_of(model, inputs, limits))
    if not batches or "input_ids" not in batches[0]:
        raise InputError(f"{model.name}: losses need a text of token ids.")
    return batches, inputs.source.value


def _changes(
    model: Model, layers: Sequence[LayerPositions], options: PositionsOptions
) -> list[Change]:
    """Return what is tried: what the weights say, each layer of it, the other pairing, bases."""
    stack = model.architecture.stacks[0]  # as stored: GGUF files pair other coordinates
    rotated = [k for k, layer in enumerate(stack.layers) if layer.rotary is not None]
    wrong = [layer for layer in layers if layer.agrees is False and layer.stack == stack.name]
    tried = []
    if wrong:
        tried.append(_change_of(wrong, AS_WEIGHTS_SAY))
        if 1 < len(wrong) <= MOST_SINGLE:
            tried += [_change_of([each], f"layer {each.layer} so") for each in wrong]
    if not rotated:
        return tried
    first = stack.layers[rotated[0]].rotary
    assert first is not None
    other = first.pairing.other
    tried.append(Change(name=f"{other.value} in all layers", pairing=dict.fromkeys(rotated, other)))
    tried.append(Change(name="no rotation at all", unrotated=tuple(rotated)))
    bases = {layer.rotary.base for layer in stack.layers if layer.rotary is not None}
    if len(bases) == 1:
        others = [base for base in options.bases if base not in bases]
        tried += [Change(name=f"base {base:g}", base=base) for base in others]
    return tried


def _change_of(wrong: Sequence[LayerPositions], name: str) -> Change:
    swapped = {
        each.layer: each.rotated.pairing
        for each in wrong
        if each.rotated is not None
        and each.configured is not None
        and each.rotated.pairing is not each.configured.pairing
    }
    return Change(
        name=name,
        pairing=swapped,
        unrotated=tuple(each.layer for each in wrong if each.found is Found.PLAIN),
        rotated=tuple(each.layer for each in wrong if each.configured is None),
    )


# --- what to do ------------------------------------------------------------------------------


def _repair(
    model: Model, layers: Sequence[LayerPositions], tried: Sequence[HypothesisTrial]
) -> Repair | None:
    """Return what would put the model right, and whether losses confirm it."""
    change = _change_of([layer for layer in layers if layer.agrees is False], AS_WEIGHTS_SAY)
    confirmed = next((trial.is_better for trial in tried if trial.name == change.name), None)
    bases = () if change.pairing else _bases_alike(tried)
    base = bases[0] if bases else None
    if not (change.pairing or change.unrotated or change.rotated or base):
        return None
    order: tuple[int, ...] = ()
    if change.pairing:
        layer, trained = next(iter(change.pairing.items()))
        each = next(found for found in layers if found.layer == layer)
        assert each.configured is not None
        order = tuple(coordinate_order(trained, each.configured.width, each.d_head).tolist())
    return Repair(
        by_rows=tuple(change.pairing),
        is_latent=model.architecture.stacks[0].latent is not None,
        unrotated=change.unrotated,
        rotated=change.rotated,
        order=order,
        base=base,
        bases_alike=bases[1:],
        confirmed=confirmed if confirmed is not None or base is None else True,
    )


def _bases_alike(tried: Sequence[HypothesisTrial]) -> tuple[float, ...]:
    """Return the bases that are better than the config's and no worse than the best, beyond chance.

    The usual one comes first if it is among them, then those of the lowest loss.
    """
    better = sorted(
        (trial.loss, trial.deviation, trial.base)
        for trial in tried
        if trial.is_better and trial.base is not None and trial.loss is not None
    )
    if not better:
        return ()
    least, error, _ = better[0]
    alike = [
        base
        for loss, deviation, base in better
        if loss - least <= CERTAIN * math.hypot(deviation or 0.0, error or 0.0)
    ]
    return tuple(sorted(alike, key=lambda base: base != USUAL_BASE))


def _written(model: Model, repair: Repair | None, target: Path) -> Repair:
    """Write the repaired checkpoint; refused unless a lower loss confirms that it is one.

    Raises:
        InputError: there is nothing to repair, or no loss confirms it.
    """
    if repair is None:
        raise InputError(f"{model.name}: nothing here is to be put right; nothing was written.")
    if repair.confirmed is None:
        raise InputError(
            f"{model.name}: a repair is written only if the loss confirms it. Give a text too."
        )
    if not repair.confirmed:
        raise InputError(f"{model.name}: the loss is not lower so; nothing was written.")
    stack = model.architecture.stacks[0]
    orders: dict[str, Order] = {}
    for layer in repair.by_rows:
        spec = stack.layers[layer].rotary
        assert spec is not None
        orders |= row_orders(stack, layer, spec.pairing.other, spec.d_rotary)
    source = Path(model.checkpoint.local_path)
    stored = read_config(source) if source.is_dir() else model.checkpoint.config
    config = repaired_config(stored, FAMILIES[model.architecture.family], stack, repair)
    write_repaired(source, target, orders, config)
    return replace(repair, written_to=str(target))
