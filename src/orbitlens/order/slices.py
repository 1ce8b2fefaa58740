"""Slices: does the column of states above token k stand for token k, and does it know its place?

Enters: a bench. Leaves: for each layer, how well token k and its neighbours are decoded from the
state at k, how well k itself is, and how often neighbours are the closest states; once with the
model as it is, and again with residual connections taken out (the hypothesis of arXiv 2402.05969).
Patches of images have no names to decode, so for images identity is left out.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitlens.families.feed import Kind
from orbitlens.order.comparing import Bench, batches
from orbitlens.order.probes import ProbeScore, adjacency, classify, regress, split_samples
from orbitlens.order.residuals import has_parallel_layers, residual_layers, without_residuals
from orbitlens.order.subject import run

MOST_CUT = 12  # layers up to which each loses its residual connections in turn
MIN_SAMPLES = 6  # fewer cannot be split into training and held-out inputs


@dataclass(frozen=True, kw_only=True)
class SliceReading:
    """What the states of one layer tell."""

    layer: int  # 0: the embedding
    identity: ProbeScore | None  # token k from the state at k
    previous: ProbeScore | None  # token k - 1 from the state at k
    following: ProbeScore | None  # token k + 1
    position: ProbeScore  # k, as R^2
    adjacency: float  # chance is 1/2


@dataclass(frozen=True, kw_only=True)
class SliceVariant:
    """All layers, with some residual connections taken out."""

    removed: str  # "none", "all", "attention", "mlp" or "layer 3"
    layers: tuple[SliceReading, ...]


@dataclass(frozen=True, kw_only=True)
class Slices:
    """Slices with and without residual connections; `notes` says what was left out and why."""

    variants: tuple[SliceVariant, ...]
    notes: tuple[str, ...]


def read_slices(bench: Bench) -> Slices:
    """Return what slices stand for, with the model as it is and with residuals taken out."""
    if len(bench.items) < MIN_SAMPLES:
        note = f"slices need at least {MIN_SAMPLES} samples, there are {len(bench.items)}"
        return Slices(variants=(), notes=(note,))
    model = bench.subject.model
    variants = [_variant(bench, "none", nullcontext())]
    n_layers = len(residual_layers(model))
    if not n_layers:
        note = f"residual connections of {bench.subject.family} layers cannot be taken out here"
        return Slices(variants=tuple(variants), notes=(note,))
    notes = []
    cuts = {"all": (True, True)}
    if has_parallel_layers(model):
        notes.append("attention and MLP share one residual sum; it is taken out as a whole")
    else:
        cuts |= {"attention": (True, False), "mlp": (False, True)}
    for name, (attention, mlp) in cuts.items():
        cut = without_residuals(model, attention=attention, mlp=mlp)
        variants.append(_variant(bench, name, cut))
    if n_layers > MOST_CUT:
        notes.append(f"layers are not cut one by one: there are {n_layers}, more than {MOST_CUT}")
    for layer in range(n_layers) if 1 < n_layers <= MOST_CUT else ():
        cut = without_residuals(model, attention=True, mlp=True, layers={layer})
        variants.append(_variant(bench, f"layer {layer}", cut, last_only=True))
    return Slices(variants=tuple(variants), notes=tuple(notes))


def _variant(
    bench: Bench, removed: str, cut: AbstractContextManager[None], *, last_only: bool = False
) -> SliceVariant:
    with cut:
        layers = _states(bench)
    numbers = [len(layers) - 1] if last_only else range(len(layers))
    readings = tuple(_reading(bench, k, layers[k]) for k in numbers)
    return SliceVariant(removed=removed, layers=readings)


def _states(bench: Bench) -> list[Tensor]:
    parts = []
    for batch in batches(bench.items):
        parts.append(run(bench.subject, batch, bench.subject.own_cell, hidden=True).hidden)
        bench.cost.add(batch)
    return [torch.cat(layer).double() for layer in zip(*parts, strict=True)]


def _reading(bench: Bench, layer: int, states: Tensor) -> SliceReading:
    if not torch.isfinite(states).all():  # without residuals a deep model can overflow
        states = torch.nan_to_num(states, nan=0.0, posinf=0.0, neginf=0.0)
    cut = split_samples(len(states))
    n_items, d_model = states.shape[1:]
    place = torch.arange(n_items, dtype=torch.float64)
    position = regress(
        states[:cut].reshape(-1, d_model),
        place.repeat(cut),
        states[cut:].reshape(-1, d_model),
        place.repeat(len(states) - cut),
        generator=bench.generator,
    )
    identity, previous, following = (_token(bench, states, cut, step) for step in (0, -1, 1))
    return SliceReading(
        layer=layer,
        identity=identity,
        previous=previous,
        following=following,
        position=position,
        adjacency=adjacency(states),
    )


def _token(bench: Bench, states: Tensor, cut: int, step: int) -> ProbeScore | None:
    """Return how well the token `step` places on is decoded from each state that has one."""
    if bench.subject.feed.kind is Kind.IMAGE:
        return None
    places = bench.movable
    here = torch.tensor([k for k in places if k + step in places])
    labels = bench.items[:, here + step]
    rows = states[:, here]
    return classify(
        rows[:cut].flatten(0, 1),
        labels[:cut].flatten(),
        rows[cut:].flatten(0, 1),
        labels[cut:].flatten(),
        generator=bench.generator,
    )
