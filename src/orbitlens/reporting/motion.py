"""What each part of a model does to the directions of tokens, from the first layer to the last.

Enters: a trace. Leaves: the steps of a waterfall, a part of a layer each, their totals, and what
these say in words. Steps are changes of S = ln(1 - C), C the mean cosine of directions (theory
section 7): they add up to the change from the tokens that enter a stack to those that leave it.
1 - C is half the mean squared distance between directions, so exp of a change is the factor of that
distance: below 1, directions come closer.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from orbitlens.results.numbers import number_ranges
from orbitlens.tracing.trace_result import DirectionTrace, Trace

PARTS = {"attention": "attention", "mlp": "MLPs", "norm": "norms", "between": "other blocks"}
STILL = 0.005  # change of ln(1 - C) up to which a part leaves directions as they are
DIGITS = 1e-6  # how finely a report writes a cosine: 1 - C is not known below it
FAR = 700.0  # the largest logarithm whose exponential is a number


@dataclass(frozen=True, kw_only=True)
class PartStep:
    """One bar of the waterfall: what one part of one layer does."""

    place: int  # of the layer in the trace
    layer: int
    part: str  # a key of PARTS
    change: float  # of ln(1 - C)
    start: float  # sum of all changes before it

    @property
    def end(self) -> float:
        """The sum of all changes up to it."""
        return self.start + self.change


@dataclass(frozen=True, kw_only=True)
class Motion:
    """What the parts of one stack do to directions, over all its layers."""

    stack: str
    steps: tuple[PartStep, ...]
    cosine_first: float  # C of the tokens that enter the first layer
    cosine_last: float  # C of the tokens that leave the last layer

    @property
    def net(self) -> float:
        """The change of ln(1 - C) by all parts: the end of the last step."""
        return self.steps[-1].end

    @property
    def totals(self) -> dict[str, float]:
        """The change of ln(1 - C) by each part that the stack has, over all layers."""
        present = [part for part in PARTS if any(step.part == part for step in self.steps)]
        return {p: sum(step.change for step in self.steps if step.part == p) for p in present}

    def by_layer(self, part: str) -> dict[int, float]:
        """Return what a part does, by layer."""
        changes: dict[int, float] = {}
        for step in self.steps:
            if step.part == part:
                changes[step.layer] = changes.get(step.layer, 0.0) + step.change
        return changes


def motions(trace: Trace) -> list[Motion]:
    """Return what the parts of each stack do."""
    names = list(dict.fromkeys(layer.stack for layer in trace.layers))
    return [_motion(trace, name) for name in names]


def _motion(trace: Trace, stack: str) -> Motion:
    here = [(n, layer) for n, layer in enumerate(trace.layers) if layer.stack == stack]
    steps: list[PartStep] = []
    level, before = 0.0, here[0][1].directions.cosine_before
    for n, layer in here:
        for part, change in _changes(layer.directions, before):
            steps.append(
                PartStep(place=n, layer=layer.layer, part=part, change=change, start=level)
            )
            level += change
        before = layer.directions.cosine_after
    first = here[0][1].directions.cosine_before
    return Motion(stack=stack, steps=tuple(steps), cosine_first=first, cosine_last=before)


def _changes(here: DirectionTrace, before: float) -> list[tuple[str, float]]:
    """Return the parts of a layer with what they do, in the order in which tokens pass them."""
    gap = abs(here.cosine_before - before) > 2 * DIGITS  # blocks that were not traced
    steps = [("between", before, here.cosine_before)] if gap else []
    steps += [(part, a.cosine, b.cosine) for part, a, b in here.steps]
    return [(part, _spread(b) - _spread(a)) for part, a, b in steps]


def _spread(cosine: float) -> float:
    """Return ln(1 - C), as far as the digits of C tell."""
    return math.log(max(DIGITS, 1 - cosine))


# --- in words ----------------------------------------------------------------------------------


def headline(motion: Motion, *, several: bool = False) -> str:
    """Say what attention and the other parts do over all layers, and what comes of it.

    Args:
        motion: of a stack.
        several: the model has several stacks, so that this one is named.
    """
    totals = motion.totals
    where = f"In the {motion.stack}, attention" if several else "Attention"
    said = [f"{where} {effect(totals['attention'])}"]
    said += [
        f"{PARTS[part]} {effect(total, of='them', plural=True)}"
        for part, total in totals.items()
        if part != "attention" and abs(total) > STILL
    ]
    ends = f"{motion.cosine_first:.2f}\u00a0→\u00a0{motion.cosine_last:.2f}".replace("-", "−")
    return f"{', '.join(said)}: mean cosine\u00a0{ends}."


def effect(change: float, *, of: str = "directions", plural: bool = False) -> str:
    """Say what a change of ln(1 - C) does to directions, by their mean squared distance.

    >>> effect(-0.5).split()
    ['brings', 'directions', '39', '%', 'closer']
    >>> effect(1.2, of="them", plural=True)
    'spread them 3.3-fold'
    """
    s = "" if plural else "s"
    if abs(change) <= STILL:
        return f"leave{s} {of} as they are"
    if change < 0:
        return f"bring{s} {of} {percent(-math.expm1(change))} closer"
    factor = math.exp(min(change, FAR))
    return f"spread{s} {of} " + (
        f"by {percent(factor - 1)}" if factor < 2 else f"{factor:.1f}-fold"
    )


def percent(share: float) -> str:
    """Write a share in percent, with more digits near 0 and 1.

    >>> [percent(share).split() for share in (0.41, 0.0123, 0.9996)]
    [['41', '%'], ['1.2', '%'], ['99.96', '%']]
    """
    digits = 2 if 0.99 < share < 1 else 0 if share >= 0.095 else 1
    return f"{100 * share:.{digits}f}\u00a0%"  # a number and its unit stay on one line


def layers_sentence(motion: Motion) -> str:
    """Say in which layers attention gathers directions and in which it spreads them."""
    kinds: dict[str, list[int]] = {"gathers": [], "spreads": [], "leaves": []}
    for layer, change in motion.by_layer("attention").items():
        kinds["leaves" if abs(change) <= STILL else "gathers" if change < 0 else "spreads"].append(
            layer
        )
    named = {kind: layers for kind, layers in kinds.items() if layers}
    said: list[str] = []
    for kind, layers in named.items():
        what = "them" if said else "directions"
        still = " as they are" if kind == "leaves" else ""
        where = "every layer" if len(named) == 1 else _layers(layers)
        said.append(f"{kind} {what}{still} in {where}")
    *most, last = said
    return f"Attention {', '.join(most)}{' and ' if most else ''}{last}."


def _layers(numbers: Sequence[int]) -> str:
    """Write numbers of layers with their runs drawn together.

    >>> _layers([0, 1, 2, 5]), _layers([3])
    ('layers 0–2, 5', 'layer 3')
    """
    word = "layer" if len(numbers) == 1 else "layers"
    return f"{word} {number_ranges(numbers, dash='–')}"
