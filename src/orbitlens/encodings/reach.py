"""How far a context reaches: predicted from weights and short text, and measured on long text.

Enters: a model, a text, how long its contexts were in training. Leaves: a `Reach`. What is
predicted uses contexts no longer than the trained one; the long rows that losses are measured on
come from the rest of the text, and are run last.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.encodings.advice import advise
from orbitlens.encodings.head_reach import heads_reach, kept_offsets
from orbitlens.encodings.long_run import by_position, increases, row_losses
from orbitlens.encodings.options import ReachOptions
from orbitlens.encodings.order_distance import order_points
from orbitlens.encodings.reach_result import Advice, HeadReach, Reach, ReachPoint
from orbitlens.encodings.stand_in import stand_in_losses, stand_ins, why_no_stand_in
from orbitlens.errors import CheckpointError, InputError
from orbitlens.families.architecture import Stack
from orbitlens.families.feed import Encoding
from orbitlens.running.inputs import Inputs, inputs_of, n_positions
from orbitlens.running.model import Model
from orbitlens.running.surprise import Rows
from orbitlens.running.texts import plain_ids, special_tokens
from orbitlens.running.threads import threads_for

RATIOS = (1.5, 2.0, 3.0, 4.0)
SHARPNESS_AT = (1.0, 2.0, 4.0)
N_BINS = 32  # stretches of loss by position
STEPS = 5  # of progress
Progress = Callable[[int, int | None], None]


@dataclass(frozen=True, kw_only=True)
class ReachRows:
    """Rows of token ids, each with one token more than is run; short and long ones do not share."""

    short: Rows
    long: Rows | None  # None: the text is too short
    n_first: int  # special tokens that open every row


def reach_of(
    model: Model,
    text: Any,  # noqa: ANN401 - what `inputs_of` takes
    options: ReachOptions,
    progress: Progress | None = None,
) -> Reach:
    """Return how far a model's context reaches.

    Raises:
        InputError: the text is too short, or the model predicts no next tokens.
    """
    running = model.running
    if not running.feed.causal or running.main_input != "input_ids":
        raise InputError(
            f"{model.name}: the reach of a context is asked of decoders, which predict every next "
            "token; this model does not."
        )
    trained = options.trained or trained_context(running)
    inputs = inputs_of(running, text, seed=options.seed)
    ratios, notes = _ratios(running, trained, options.furthest)
    rows = reach_rows(running, inputs, trained, max(ratios, default=1.0), options)
    done = _counter(progress)
    with threads_for(running.n_parameters), running.evaluating():
        heads, lengths = _heads(running, rows, trained, notes)
        done()
        predicted = _predicted(running, rows, trained, ratios, options, notes)
        done()
        order = order_points(running, rows.short, options.seed) if options.order else ()
        done()
        advice = _advice(running, rows, trained, ratios, options, notes)
        done()
        measured, curve = _measured(running, rows, trained, ratios)
        done()
    if rows.long is None and ratios:
        notes.append("the text is too short to measure a long context; losses are predicted only")
    return Reach(
        trained=trained,
        offsets=tuple(kept_offsets(max(lengths))) if heads else (),
        lengths=lengths,
        heads=heads,
        points=tuple(
            _point(ratio, trained, said, found)
            for ratio, said, found in zip(ratios, predicted, measured, strict=True)
        ),
        by_position=curve,
        order=order,
        advice=advice,
        n_short=len(rows.short),
        n_long=0 if rows.long is None else len(rows.long),
        notes=(*inputs.notes, *notes),
    )


def _counter(progress: Progress | None) -> Callable[[], None]:
    steps = iter(range(1, STEPS + 1))
    return lambda: progress(next(steps), STEPS) if progress is not None else None


# --- what is run -----------------------------------------------------------------------------


def trained_context(model: Model) -> int:
    """Return how many tokens the config says a model was trained on.

    Raises:
        InputError: it does not say.
    """
    for layer in model.architecture.stacks[0].layers:
        spec = layer.rotary
        if spec is not None and "original_max_position_embeddings" in spec.parameters:
            return int(spec.parameters["original_max_position_embeddings"])
    most = n_positions(model.module.config)
    if most is None:
        raise InputError(
            f"{model.name}: the config does not say how long its contexts were in training. Give "
            "the number of tokens."
        )
    return most


def _ratios(model: Model, trained: int, furthest: float) -> tuple[tuple[float, ...], list[str]]:
    """Return the lengths that are asked for, and what stands in the way of longer ones."""
    notes = _reading_notes(model.architecture.stacks[0])
    if model.feed.encoding is not Encoding.ABSOLUTE:
        return tuple(ratio for ratio in RATIOS if ratio <= furthest), notes
    n_rows = n_positions(model.module.config) or trained
    ratios = tuple(r for r in RATIOS if r <= furthest and round(r * trained) <= n_rows)
    if len(ratios) < sum(r <= furthest for r in RATIOS):
        notes.append(
            f"the table of absolute positions ends after {n_rows} tokens: longer contexts do not "
            "exist for this model"
        )
    return ratios, notes


def _reading_notes(stack: Stack) -> list[str]:
    notes = []
    if stack.latent is not None:
        notes.append(
            "latent attention: planes are those of the rotated part of a head; its keys are read "
            "at their typical length"
        )
    kinds = {layer.rotary.kind for layer in stack.layers if layer.rotary is not None}
    if kinds - {"default"}:
        named = ", ".join(sorted(kinds - {"default"}))
        notes.append(f"angles are stretched already ({named}); all numbers are with that")
    return notes


def reach_rows(
    model: Model, inputs: Inputs, trained: int, furthest: float, options: ReachOptions
) -> ReachRows:
    """Cut a text into short rows and, of the rest of it, long ones.

    Raises:
        InputError: there are not even two short rows.
    """
    first = _first_tokens(model, inputs)
    n_short = max(2, min(options.rows, options.max_tokens // trained))
    body, longest = trained + 1 - len(first), math.ceil(furthest * trained) + 1 - len(first)
    n_long = max(2, min(options.rows, options.max_tokens // longest)) if options.measure else 0
    ids = _flat_ids(model, inputs, n_short * body + n_long * longest)
    short, rest = _cut(ids, body, n_short)
    if len(short) < 2:
        raise InputError(
            f"the text has {len(ids)} tokens; the reach of a context of {trained} needs at least "
            f"{2 * body}. Give a longer text, or a shorter trained context."
        )
    long, _ = _cut(rest, longest, n_long)
    front = torch.tensor(first, dtype=torch.int64)
    opened = [torch.cat([front.expand(len(x), -1), x], dim=1) for x in (short, long)]
    return ReachRows(
        short=opened[0], long=opened[1] if len(long) >= 2 else None, n_first=len(first)
    )


def _cut(ids: Tensor, length: int, count: int) -> tuple[Tensor, Tensor]:
    n_rows = min(count, len(ids) // length)
    used = n_rows * length
    return ids[:used].reshape(n_rows, length), ids[used:]


def _first_tokens(model: Model, inputs: Inputs) -> list[int]:
    around = special_tokens(model.tokenizer) if inputs.is_text else None
    return around[0] if around is not None else []


def _flat_ids(model: Model, inputs: Inputs, wanted: int) -> Tensor:
    ids: list[int] = []
    for part in _parts(model, inputs):
        ids.extend(part)
        if len(ids) >= wanted:
            break
    return torch.tensor(ids[:wanted], dtype=torch.int64)


def _parts(model: Model, inputs: Inputs) -> Iterable[list[int]]:
    if inputs.pieces is not None:
        return (plain_ids(model.tokenizer, piece) for piece in inputs.pieces())
    if inputs.texts:
        return (plain_ids(model.tokenizer, text) for text in inputs.texts)
    if inputs.batches:
        return (row.tolist() for batch in inputs.batches for row in batch["input_ids"])
    return (list(row) for row in inputs.contexts)


# --- from short text -------------------------------------------------------------------------


def _heads(
    model: Model, rows: ReachRows, trained: int, notes: list[str]
) -> tuple[tuple[HeadReach, ...], tuple[int, ...]]:
    lengths = tuple(round(ratio * trained) for ratio in SHARPNESS_AT)
    try:
        return tuple(heads_reach(model, rows.short[:, :-1], trained, lengths)), lengths
    except CheckpointError as refusal:
        notes.append(f"heads were not read: {refusal}")
        return (), lengths


def _predicted(
    model: Model,
    rows: ReachRows,
    trained: int,
    ratios: tuple[float, ...],
    options: ReachOptions,
    notes: list[str],
) -> list[Float[Tensor, " batch"] | None]:
    reason = why_no_stand_in(model.feed)
    if reason is not None:
        notes.append(f"no loss is predicted: {reason}")
        return [None] * len(ratios)
    generator = torch.Generator().manual_seed(options.seed)
    made = stand_ins(rows.short, generator)
    base = stand_in_losses(model, made, None, generator)
    return [
        stand_in_losses(model, made, round(ratio * trained), generator) - base for ratio in ratios
    ]


def _advice(
    model: Model,
    rows: ReachRows,
    trained: int,
    ratios: tuple[float, ...],
    options: ReachOptions,
    notes: list[str],
) -> Advice | None:
    if not options.advise or not ratios:
        return None
    try:
        return advise(model, rows.short, trained, max(ratios), seed=options.seed)
    except InputError as refusal:
        notes.append(f"no advice on scaling: {refusal}")
        return None


# --- on long text ----------------------------------------------------------------------------


def _measured(
    model: Model, rows: ReachRows, trained: int, ratios: tuple[float, ...]
) -> tuple[list[Tensor | None], tuple[tuple[int, float], ...]]:
    if rows.long is None or not ratios:
        return [None] * len(ratios), ()
    found = increases(model, rows.long, trained, ratios, n_first=rows.n_first)
    ends, losses = by_position(row_losses(model, rows.long), N_BINS)
    return list(found), tuple(zip(ends.tolist(), losses.tolist(), strict=True))


def _point(
    ratio: float, trained: int, predicted: Tensor | None, measured: Tensor | None
) -> ReachPoint:
    said, said_error = _mean(predicted)
    found, found_error = _mean(measured)
    return ReachPoint(
        ratio=ratio,
        length=round(ratio * trained),
        predicted=said,
        predicted_error=said_error,
        measured=found,
        measured_error=found_error,
    )


def _mean(values: Tensor | None) -> tuple[float | None, float | None]:
    if values is None:
        return None, None
    return float(values.mean()), float(values.std() / math.sqrt(len(values)))
