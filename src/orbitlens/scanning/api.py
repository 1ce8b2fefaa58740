"""`scan`: how the two maps of every head lie to each other; with a text, what it does to tokens.

Enters: a model. Leaves: a `Scan`, one reading a head and a layer.
Reads one attention layer at a time and nothing but attention. No module is built without a text.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import InputError
from orbitlens.families.architecture import Position, Stack
from orbitlens.running.info import model_info, reading_cost
from orbitlens.running.model import load
from orbitlens.running.threads import each_layer
from orbitlens.scanning.layers import scan_layer
from orbitlens.scanning.notes import scan_flags
from orbitlens.scanning.on_text import read_on_text
from orbitlens.scanning.options import ScanOptions
from orbitlens.scanning.scan_result import LayerScan, Scan

Progress = Callable[[int, int | None], None]


def scan(
    model: Any,  # noqa: ANN401 - a `Model`, or what `load` takes
    options: ScanOptions | None = None,
    *,
    text: Any = None,  # noqa: ANN401 - what `trace` takes
    progress: Progress | None = None,
) -> Scan:
    """Read every head of a model from its weights; with a text, measure what it does to tokens.

    Args:
        model: a `Model`, or anything `load` takes.
        options: which layers, which context, covariances for the data-aware reading, ...
        text: a string, strings, a path object, token ids or images. The model is traced on it, and
            every head gets what it does to directions and distances, measured and predicted, and a
            data-aware reading. Without it no module is built and nothing is run.
        progress: called with what is done and of how much: of the trace, then of the layers.

    Raises:
        InputError: an option does not fit the model.
        CheckpointError: a tensor is broken, or holds NaN or infinity.
    """
    options = options or ScanOptions()
    opened = load(model)
    checkpoint = opened.checkpoint
    started = time.perf_counter()
    device = resolve_device(options.device)
    wanted = _wanted_layers(checkpoint, options)
    _check_context(checkpoint, options)
    _check_covariances(checkpoint, options)
    readings = None
    if text is not None:
        _refuse_covariances(options)
        readings = read_on_text(opened, text, progress=progress)
        options = replace(options, covariances=readings.covariances)

    def scan_one(place: tuple[Stack, int]) -> LayerScan:
        stack, index = place
        layer = opened.layer(index, stack=stack.name, device=device)
        return scan_layer(layer, options)

    layers: list[LayerScan] = []
    width = max(stack.d_model for stack, _ in wanted)
    by_size = partial(each_layer, width=width) if device.type == "cpu" else map
    for layer in by_size(scan_one, wanted):
        layers.append(layer if readings is None else readings.added_to(layer))
        if progress is not None:
            progress(len(layers), len(wanted))
    n_bytes = _bytes_read(checkpoint, wanted)
    cost = reading_cost(checkpoint, started=started, n_bytes=n_bytes)
    flags = scan_flags(checkpoint, layers, options)
    if readings is not None:
        flags = tuple(dict.fromkeys((*flags, *readings.flags)))
    return Scan(
        model=model_info(checkpoint),
        text=None if readings is None else readings.info,
        layers=tuple(layers),
        cost=cost,
        flags=flags,
    )


def _bytes_read(checkpoint: Checkpoint, places: list[tuple[Stack, int]]) -> int:
    """Return the size of what was read; layers that share their weights count once."""
    names = {name for stack, index in places for name in stack.tensors[index].values()}
    return sum(checkpoint.source.tensors[name].n_bytes for name in names)


def _wanted_layers(checkpoint: Checkpoint, options: ScanOptions) -> list[tuple[Stack, int]]:
    pairs = [
        (stack, index)
        for stack in checkpoint.architecture.stacks
        for index in range(stack.n_layers)
        if options.layers is None or index in options.layers
    ]
    missing = set(options.layers or ()) - {index for _, index in pairs}
    if missing or not pairs:
        deepest = max(stack.n_layers for stack in checkpoint.architecture.stacks)
        raise InputError(
            f"layers {sorted(missing) or 'none'} were asked for; "
            f"this model has layers 0 to {deepest - 1}."
        )
    return pairs


def _check_context(checkpoint: Checkpoint, options: ScanOptions) -> None:
    if options.context is None:
        return
    if options.context < 1:
        raise InputError(
            f"a context of {options.context} tokens was asked for; expected 1 or more."
        )
    positions = {stack.position for stack in checkpoint.architecture.stacks}
    if Position.ROTARY not in positions:
        names = ", ".join(sorted(position.value for position in positions))
        raise InputError(
            f"a context length was given, but it only matters for rotary encodings; "
            f"this model's is {names}. Leave it out."
        )


def _check_covariances(checkpoint: Checkpoint, options: ScanOptions) -> None:
    known = {
        (stack.name, index)
        for stack in checkpoint.architecture.stacks
        for index in range(stack.n_layers)
    }
    unknown = sorted(set(options.covariances or ()) - known)
    if unknown:
        stack, index = unknown[0]
        names = ", ".join(f"{s.name} 0 to {s.n_layers - 1}" for s in checkpoint.architecture.stacks)
        raise InputError(
            f"a covariance was given for layer {index} of the {stack}; this model has: {names}."
        )


def _refuse_covariances(options: ScanOptions) -> None:
    if options.covariances is not None:
        raise InputError(
            "covariances and a text were given; a text brings covariances of its own. Give one."
        )


def resolve_device(name: str) -> torch.device:
    """Return the device to compute on; "auto" takes CUDA where there is one.

    Raises:
        InputError: there is no such device here, or it has no float64.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "mps":
        raise InputError("mps has no float64, which exact readings need. Use the device cpu.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("cuda was asked for, but torch sees no CUDA device. Use the device cpu.")
    if name not in {"cpu", "cuda"}:
        raise InputError(f"the device {name!r} is unknown. Expected auto, cpu, cuda or mps.")
    return torch.device(name)
