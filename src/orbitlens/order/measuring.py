"""The audit: does a prediction depend on the order of earlier tokens, how much, and through what?

Enters: a model and inputs. Leaves: an `Audit`. Self-checks come first; one that fails stops it.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.order.audit_result import (
    Audit,
    AuditCost,
    AuditModel,
    AuditSettings,
    value_of,
)
from orbitlens.order.blocks import FREE_SHARE, by_position, find_blocks, horizon
from orbitlens.order.checks import encoding_effect, verify
from orbitlens.order.divergence import Shapley, shapley
from orbitlens.order.options import AuditOptions
from orbitlens.order.permutations import shuffles
from orbitlens.order.sensitivity import (
    Bench,
    CellReading,
    Work,
    by_layer,
    by_ngram,
    by_swap_distance,
    by_window,
    read_cell,
)
from orbitlens.order.slices import read_slices
from orbitlens.order.subject import Cell, Subject
from orbitlens.running.samples import SHORTEST

N_DETAIL = 4  # permutations an input of each swap distance, window and n-gram size


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
    checks = verify(subject, items, generator=generator)
    bench = _bench(subject, items, generator, chosen, progress)
    cells = _cells(bench, chosen.permutations)
    result = _assemble(bench, chosen, cells, origin or Origin())
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
    if n_items < SHORTEST or len(subject.movable(n_items)) < 2:
        raise InputError(
            f"inputs of {n_items} tokens, {len(subject.movable(n_items))} of which may move: an "
            f"audit needs at least {SHORTEST} tokens, two whose order can change and one to "
            "predict from."
        )
    if len(items) < 2 or options.permutations < 1:
        raise InputError(
            f"{len(items)} samples and {options.permutations} permutations: an audit needs at "
            "least 2 samples and 1 permutation."
        )


def _bench(
    subject: Subject,
    items: Tensor,
    generator: torch.Generator,
    options: AuditOptions,
    progress: Callable[[int, int], None] | None,
) -> Bench:
    total = len(subject.cells) * len(items) * (options.permutations + 1)
    done = 0

    def step(n: int) -> None:
        nonlocal done
        done += n
        if progress is not None:
            progress(min(done, total), total)

    return Bench(subject=subject, items=items, generator=generator, cost=Work(), progress=step)


def _cells(bench: Bench, n_permutations: int) -> dict[str, CellReading | None]:
    """Return the 2 x 2, all cells under the same permutations; each input has its own."""
    total = n_permutations * len(bench.items)
    perms = bench.each(shuffles(bench.n_items, bench.movable, total, bench.generator))
    reached = bench.subject.cells
    return {cell.value: read_cell(bench, cell, perms) if cell in reached else None for cell in Cell}


def _assemble(
    bench: Bench, options: AuditOptions, cells: dict[str, CellReading | None], origin: Origin
) -> Audit:
    subject = bench.subject
    own, bottom = cells[subject.own_cell.value], cells[Cell.NOPE_FULL.value]
    assert own is not None  # a model's own cell can always be reached
    threshold = FREE_SHARE * value_of(own)
    positions = by_position(bench) if options.details else []
    return Audit(
        model=_model(bench, origin),
        settings=_settings(bench, options, origin),
        cells=cells,
        not_ablatable={c.value: why for c in Cell if (why := subject.obstacle(c)) is not None},
        shapley=_shares(subject, cells),
        floor=value_of(bottom) if bottom is not None else None,
        encoding_effect=encoding_effect(subject, bench.items),
        threshold=threshold,
        horizon=horizon(positions, threshold) if positions else None,
        layers=tuple(by_layer(bench)),
        swap_distance=tuple(by_swap_distance(bench, N_DETAIL)) if options.details else (),
        windows=tuple(by_window(bench, N_DETAIL)) if options.details else (),
        ngrams=tuple(by_ngram(bench, N_DETAIL)) if options.details else (),
        positions=tuple(positions),
        blocks=tuple(find_blocks(bench, positions, threshold)) if positions else (),
        slices=read_slices(bench) if options.slices else None,
        checks=(),
        cost=AuditCost(seconds=0.0, forward_calls=0, sequences=0, sequences_asked=0, tokens=0),
        notes=origin.notes,
    )


def _shares(subject: Subject, cells: dict[str, CellReading | None]) -> Shapley | None:
    """Return the shares; a model with full attention has no mask that could have one."""
    values = {name: value_of(reading) for name, reading in cells.items() if reading is not None}
    needed = [Cell.PE_FULL, Cell.NOPE_FULL] if not subject.feed.causal else list(Cell)
    if any(cell.value not in values for cell in needed):
        return None
    if not subject.feed.causal:
        both, neither = values[Cell.PE_FULL], values[Cell.NOPE_FULL]
        return shapley(both=both, encoding_only=both, mask_only=neither, neither=neither)
    return shapley(
        both=values[Cell.PE_CAUSAL],
        encoding_only=values[Cell.PE_FULL],
        mask_only=values[Cell.NOPE_CAUSAL],
        neither=values[Cell.NOPE_FULL],
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
        has_head=subject.has_head,
        n_layers=int(states),
        n_parameters=sum(p.numel() for p in subject.model.parameters()),
    )


def _settings(bench: Bench, options: AuditOptions, origin: Origin) -> AuditSettings:
    return AuditSettings(
        source=origin.source,
        samples=len(bench.items),
        permutations=options.permutations,
        length=bench.n_items,
        movable=(bench.movable.start, bench.movable.stop - 1),
        seed=options.seed,
    )
