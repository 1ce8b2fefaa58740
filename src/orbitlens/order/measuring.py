"""The audit: does a prediction depend on the order of earlier tokens, how much, and through what?

Enters: a model and inputs. Leaves: an `Audit`. Self-checks come first; one that fails stops it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.order.asked import Asked
from orbitlens.order.audit_result import (
    Audit,
    AuditCost,
    AuditModel,
    AuditSettings,
    value_of,
)
from orbitlens.order.blocks import FREE_SHARE, by_position, find_blocks, horizon
from orbitlens.order.checks import verify
from orbitlens.order.comparing import Bench, Work
from orbitlens.order.divergence import Effects, Shapley, split_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.permutations import shuffles
from orbitlens.order.sensitivity import (
    CellReading,
    CellValues,
    SizeReadings,
    by_layer,
    by_size,
    cell_values,
    encoding_effect,
    read_cell,
)
from orbitlens.order.slices import read_slices
from orbitlens.order.subject import Cell, Subject
from orbitlens.running.samples import SHORTEST

WITH_HORIZON = (Asked.NEXT, Asked.MASKED)  # predictions with tokens nearer and further off
LARGE_MODEL = 50_000_000  # parameters beyond which slices are probed only if asked for
NO_SLICES = "slices were not probed, as the model is large; ask for them with --slices"
NO_MASK = "not compared: the model attends in full and has no mask"


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How much goes into each part, so that details cost less than the 2 x 2 does."""

    each: int  # permutations of each input, at each place
    samples: int  # inputs that details are read on
    detail: int  # permutations an input of each swap distance, window and n-gram size
    block: int  # shuffles of a whole block
    layer_samples: int
    layer_shuffles: int
    slices: bool


def effort_for(options: AuditOptions, subject: Subject, n_samples: int) -> Effort:
    """Return how much goes into each part; permutations are dealt out to the places."""
    n_permutations = options.permutations
    n_parameters = sum(parameter.numel() for parameter in subject.model.parameters())
    is_small = n_parameters <= LARGE_MODEL
    return Effort(
        each=-(-n_permutations // len(subject.in_turn)),
        samples=min(n_samples, max(2, n_samples * n_permutations // 32)),
        detail=min(4, max(1, n_permutations // 4)),
        block=min(8, max(1, n_permutations // 2)),
        layer_samples=min(8, max(2, n_samples // 4)),
        layer_shuffles=min(4, max(1, n_permutations // 4)),
        slices=is_small if options.slices is None else options.slices,
    )


@dataclass(frozen=True, kw_only=True)
class Origin:
    """What is measured, as results name it."""

    name: str = ""  # of the model
    source: str = "given"  # of the inputs
    notes: tuple[str, ...] = ()


def measure_order(
    subject: Subject,
    items: Tensor,
    *,
    options: AuditOptions | None = None,
    origin: Origin | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Return what a model makes of the order of its earlier tokens.

    Args:
        subject: a model and how it is fed, from `make_subject`.
        items: token ids (samples, items), or patches from `patches_of_images`.
        options: how much to measure.
        origin: what results call the model and its inputs.
        progress: called with (done, total) sequences of the 2 x 2.

    Raises:
        InputError: the inputs are too short or too few.
        UnknownFamilyError: nothing is known about how the family takes positions and masks.
        AuditError: a self-check failed, so that the numbers would mean nothing.
    """
    chosen = options or AuditOptions()
    _check_items(subject, items, chosen)
    started = time.perf_counter()
    generator = torch.Generator().manual_seed(chosen.seed)
    effort = effort_for(chosen, subject, len(items))
    bench = _bench(subject, items, generator, effort, progress)
    probing = torch.Generator().manual_seed(chosen.seed)  # numbers do not depend on what it draws
    checks = verify(bench, generator=probing)
    values = _values(bench, effort.each)
    result = _assemble(bench, chosen, effort, values, origin or Origin())
    cost = AuditCost(
        seconds=time.perf_counter() - started,
        forward_calls=bench.cost.forward_calls,
        sequences=bench.cost.sequences,
        sequences_asked=bench.cost.asked,
        tokens=bench.cost.tokens,
    )
    return replace(result, checks=tuple(checks), cost=cost)


def _check_items(subject: Subject, items: Tensor, options: AuditOptions) -> None:
    n_items = items.shape[1] if items.ndim > 1 else 0
    if n_items < SHORTEST or _n_movable(subject, n_items) < 2:
        raise InputError(
            f"inputs of {n_items} tokens, {_n_movable(subject, n_items)} of which may move: an "
            f"audit needs at least {SHORTEST} tokens, two whose order can change and one to "
            "predict from."
        )
    if len(items) < 2 or options.permutations < 1:
        raise InputError(
            f"{len(items)} samples and {options.permutations} permutations: an audit needs at "
            "least 2 samples and 1 permutation."
        )


def _n_movable(subject: Subject, n_items: int) -> int:
    return len(subject.movable(n_items)) if n_items else 0


def _bench(
    subject: Subject,
    items: Tensor,
    generator: torch.Generator,
    effort: Effort,
    progress: Callable[[int, int], None] | None,
) -> Bench:
    total = len(subject.compared) * len(subject.in_turn) * len(items) * (effort.each + 1)
    done = 0

    def step(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(min(done, total), total)

    return Bench(
        subject=subject,
        items=items,
        generator=generator,
        cost=Work(),
        progress=step,
        n_states=min(effort.layer_samples, len(items)),
    )


def _values(bench: Bench, n_permutations: int) -> dict[Cell, CellValues]:
    """Return the 2 x 2, all cells under the same permutations; inputs and places have their own."""
    total = n_permutations * len(bench.items)
    perms = [
        bench.each(shuffles(bench.n_items, subject.movable(bench.n_items), total, bench.generator))
        for subject in bench.subject.in_turn
    ]
    return {cell: cell_values(bench, cell, perms) for cell in bench.subject.compared}


def _assemble(
    bench: Bench,
    options: AuditOptions,
    effort: Effort,
    values: dict[Cell, CellValues],
    origin: Origin,
) -> Audit:
    subject = bench.subject
    cells = {c.value: read_cell(bench, values[c]) if c in values else None for c in Cell}
    own, bottom = cells[subject.own_cell.value], cells[Cell.NOPE_FULL.value]
    assert own is not None  # a model's own cell can always be reached
    effects, shares = _split(bench, values)
    threshold = FREE_SHARE * _at_query(subject, own)
    some = bench.some(effort.samples)
    positions = by_position(some) if options.details else []
    sizes = by_size(some, effort.detail, own) if options.details else SizeReadings()
    blocks = find_blocks(some, positions, threshold, n_shuffles=effort.block)
    return Audit(
        model=_model(bench, origin),
        settings=_settings(bench, options, effort, origin),
        cells=cells,
        not_ablatable={
            cell.value: subject.obstacle(cell) or NO_MASK for cell in Cell if cell not in values
        },
        effects=effects,
        shapley=shares,
        floor=value_of(bottom) if bottom is not None else None,
        encoding_effect=encoding_effect(bench),
        threshold=threshold,
        horizon=horizon(positions, threshold) if subject.asked in WITH_HORIZON else None,
        layers=tuple(by_layer(bench, effort.layer_shuffles)),
        swap_distance=sizes.swap_distance,
        windows=sizes.windows,
        ngrams=sizes.ngrams,
        positions=tuple(positions),
        blocks=tuple(blocks),
        slices=read_slices(bench) if effort.slices else None,
        checks=(),
        cost=AuditCost(seconds=0.0, forward_calls=0, sequences=0, sequences_asked=0, tokens=0),
        notes=(
            *origin.notes,
            *([NO_SLICES] if options.slices is None and not effort.slices else []),
        ),
    )


def _at_query(subject: Subject, own: CellReading) -> float:
    """Return the order sensitivity at the place where details are read."""
    if not own.places:
        return value_of(own)
    return own.places[subject.places.index(subject.query)].mean


def _split(bench: Bench, values: dict[Cell, CellValues]) -> tuple[Effects | None, Shapley | None]:
    """Return what encoding and mask bring; a model with full attention has no mask."""
    if any(cell not in values for cell in Cell):
        return None, None
    means = {cell: values[cell].by_place.mean(dim=1) for cell in Cell}
    return split_order(
        both=means[Cell.PE_CAUSAL],
        encoding_only=means[Cell.PE_FULL],
        mask_only=means[Cell.NOPE_CAUSAL],
        neither=means[Cell.NOPE_FULL],
        generator=bench.generator,
    )


def _model(bench: Bench, origin: Origin) -> AuditModel:
    subject = bench.subject
    states = getattr(subject.model.config, "num_hidden_layers", 0)
    return AuditModel(
        path=origin.name,
        family=subject.family,
        kind=subject.feed.kind.value,
        encoding=subject.feed.encoding.value,
        own_cell=subject.own_cell.value,
        has_head=subject.in_bits,
        n_layers=int(states),
        n_parameters=sum(p.numel() for p in subject.model.parameters()),
    )


def _settings(bench: Bench, options: AuditOptions, effort: Effort, origin: Origin) -> AuditSettings:
    everywhere = {k for one in bench.subject.in_turn for k in one.movable(bench.n_items)}
    return AuditSettings(
        source=origin.source,
        samples=len(bench.items),
        permutations=effort.each,
        length=bench.n_items,
        movable=(min(everywhere), max(everywhere)),
        asked=bench.subject.asked.value,
        places=tuple(place % bench.n_items for place in bench.subject.places),
        seed=options.seed,
    )
