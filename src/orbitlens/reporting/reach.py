"""A `Reach` -> what a report shows of it: one row a layer, and losses beyond the context.

Enters: a model and its inputs. Leaves: a `ReachReport`. Few contexts are run, and no scaling is
tried: `orbitlens positions --reach` does that. Models with long contexts are left to it altogether.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from orbitlens.encodings.options import ReachOptions
from orbitlens.encodings.reach import reach_of, trained_context
from orbitlens.encodings.reach_result import HeadReach, Reach, ReachPoint
from orbitlens.errors import InputError
from orbitlens.reporting.material import Material

LONGEST_TRAINED = 512  # tokens of a trained context that a report runs four times of
LARGEST = 50_000_000  # parameters of a model that it does so with
SHORT = ReachOptions(rows=16, max_tokens=4096, advise=False, order=False)


@dataclass(frozen=True, kw_only=True)
class LayerReach:
    """What the heads of one layer do over distance, on average."""

    layer: int
    periods: tuple[float, ...]  # of planes, fast to slow; empty: not rotary
    shares: tuple[float, ...]
    unfinished: float | None
    attention: tuple[float, ...]  # weight of one token at each offset
    sharpness: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ReachReport:
    """How far a context reaches, as a report has it."""

    trained: int
    offsets: tuple[int, ...]
    lengths: tuple[int, ...]
    layers: tuple[LayerReach, ...]
    points: tuple[ReachPoint, ...]
    sentences: str
    notes: tuple[str, ...]


def reach_report(given: Material, seed: int) -> ReachReport:
    """Return how far the context of a model reaches.

    Raises:
        InputError: it is no decoder, or its contexts are too long for a report.
    """
    model = given.model
    if model.main_input != "input_ids" or not model.running.feed.causal:
        raise InputError("a context's reach is asked of decoders, which predict every next token")
    trained = trained_context(model.running)
    if trained > LONGEST_TRAINED or model.n_parameters > LARGEST:
        raise InputError(
            f"contexts of {4 * trained} tokens are not run in a report; "
            "`orbitlens positions --reach` runs them"
        )
    found = brief_reach(reach_of(model, given.inputs, replace(SHORT, seed=seed)))
    own = tuple(note for note in found.notes if note not in given.inputs.notes)
    return replace(found, notes=own)


def brief_reach(reach: Reach) -> ReachReport:
    """Return the means over the heads of each layer, and all else as it is."""
    layers: dict[int, list[HeadReach]] = {}
    for head in reach.heads:
        layers.setdefault(head.layer, []).append(head)
    return ReachReport(
        trained=reach.trained,
        offsets=reach.offsets,
        lengths=reach.lengths,
        layers=tuple(_layer(number, heads) for number, heads in layers.items()),
        points=reach.points,
        sentences=reach.summary(),
        notes=reach.notes,
    )


def _layer(number: int, heads: Sequence[HeadReach]) -> LayerReach:
    unfinished = [head.unfinished for head in heads if head.unfinished is not None]
    return LayerReach(
        layer=number,
        periods=heads[0].periods,
        shares=_means([head.shares for head in heads]),
        unfinished=sum(unfinished) / len(unfinished) if unfinished else None,
        attention=_means([head.attention for head in heads]),
        sharpness=_means([head.sharpness for head in heads]),
    )


def _means(rows: Sequence[Sequence[float]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
