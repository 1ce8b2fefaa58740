"""Spectra of every head, and what a rotary encoding does to its rates by offset.

Enters: a model. Leaves: a `HeadSpectra` for each head; layers that share their weights are
read once. Long spectra are thinned evenly, so that a report of a large model stays small.
"""

from collections.abc import Sequence

from orbitlens.families.architecture import Stack
from orbitlens.heads.head import Head
from orbitlens.reporting.data import HeadSpectra
from orbitlens.reporting.orbits import spread_out
from orbitlens.running.model import Model
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.positional import maps_at_offset
from orbitlens.theory.rates import rate_spectrum, rates_of_spectrum

MOST_NUMBERS = 64  # of one spectrum
ALL_NUMBERS = 12_000  # of one kind of spectrum, over all heads
FEWEST_NUMBERS = 8
MANY_HEADS = 256  # beyond, offsets go up by factors of four, not of two


def weights_of(stack: Stack) -> tuple[int, ...]:
    """Return for each layer the first one that reads the same tensors."""
    seen: dict[tuple[tuple[str, str], ...], int] = {}
    names = [tuple(sorted(tensors.items())) for tensors in stack.tensors]
    return tuple(seen.setdefault(key, k) for k, key in enumerate(names))


def spectra_of(model: Model, context: int) -> tuple[HeadSpectra, ...]:
    """Return the spectra of all heads that differ in their weights."""
    places = [
        (stack, layer)
        for stack in model.architecture.stacks
        for layer in sorted(set(weights_of(stack)))
    ]
    n_heads = sum(stack.layers[layer].n_heads for stack, layer in places)
    kept = max(FEWEST_NUMBERS, min(MOST_NUMBERS, ALL_NUMBERS // n_heads))
    steps = offsets(context, factor=2 if n_heads <= MANY_HEADS else 4)
    heads = []
    for stack, index in places:
        layer = model.layer(index, stack=stack.name)
        heads += [_spectra(stack.name, head, kept, steps) for head in layer]
    return tuple(heads)


def offsets(context: int, *, factor: int = 2) -> list[int]:
    """Return 0, 1 and the powers of a factor within a context.

    >>> offsets(12)
    [0, 1, 2, 4, 8]
    """
    steps, power = [0], 1
    while power < context:
        steps.append(power)
        power *= factor
    return steps


def _spectra(stack: str, head: Head, kept: int, steps: Sequence[int]) -> HeadSpectra:
    maps = HeadMaps.of(head)
    rates = rate_spectrum(maps).tolist()
    values = sorted(maps.value_spectrum.tolist(), key=lambda v: (-abs(v), -v.imag))
    turned = [_at_offset(head, step) for step in steps] if head.rotary is not None else []
    size = turned[0][1] if turned else 0.0
    return HeadSpectra(
        stack=stack,
        layer=head.layer,
        head=head.index,
        rates=tuple(_short(rates[k]) for k in spread_out(len(rates), kept)),
        n_rates=len(rates),
        eigenvalues=tuple(
            (_short(values[k].real), _short(values[k].imag)) for k in spread_out(len(values), kept)
        ),
        n_eigenvalues=len(values),
        offsets=tuple(steps) if turned else (),
        offset_index=tuple(_short(index) for index, _ in turned),
        offset_size=tuple(_short(each / size) if size > 0 else 1.0 for _, each in turned),
    )


def _at_offset(head: Head, offset: int) -> tuple[float, float]:
    """Return the expansion index and the size of the rates at one offset."""
    rates = rates_of_spectrum(rate_spectrum(maps_at_offset(head, offset)), head.d_model)
    return rates.expansion_index, rates.size


def _short(value: float) -> float:
    """Return four digits of a number: a spectrum is looked at, not computed with."""
    return float(f"{value:.4g}")
