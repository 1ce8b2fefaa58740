"""Checkpoint -> Scan: the map of which heads gather tokens and which spread them.

Enters: a `Checkpoint`. Leaves: a `Scan`, one reading a head and a layer.
Reads one attention layer at a time and nothing but attention; no model is built.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import torch
from torch import Tensor

from orbitlens._types import Covariance
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import InputError
from orbitlens.families.architecture import Position, Stack
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer, load_layer
from orbitlens.running.info import Cost, model_info, peak_rss_bytes
from orbitlens.running.workers import torch_threads
from orbitlens.scanning.scan_result import (
    HeadScan,
    LayerScan,
    Reading,
    RotaryReading,
    Scan,
    Tendency,
    reading_of,
)
from orbitlens.theory.certificates import head_certificates, layer_certificates
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.positional import frequency_energy, maps_in_context, rotary_effect
from orbitlens.theory.rates import LayerDrift, head_rates, predicted_log_change

CHANCE = 3.0  # sigmas of alignment beyond which a head's tendency is not taken for chance
SPECTRUM_LIMIT = 512  # widest sum of value maps whose whole spectrum is computed unasked
NARROW = 768  # d_model up to which layers are scanned side by side
Progress = Callable[[int, int], None]


# --- scanning --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ScanOptions:
    """How to scan, beyond which model."""

    layers: Sequence[int] | None = None  # all, if None
    context: int | None = None  # tokens; adds what a rotary encoding leaves of each rate
    covariances: Mapping[tuple[str, int], Covariance] | None = None  # (stack, layer) -> covariance
    exact: bool = False  # whole spectra of layers however wide
    device: str = "cpu"


def scan(
    checkpoint: Checkpoint,
    options: ScanOptions | None = None,
    *,
    progress: Progress | None = None,
) -> Scan:
    """Read every head of a checkpoint: does it gather tokens or spread them?

    Args:
        checkpoint: from `load_checkpoint`.
        options: which layers, which context, covariances for the data-aware reading, ...
        progress: called with (layers done, layers in all) after each layer.

    Raises:
        InputError: an option does not fit the model.
        CheckpointError: a tensor is broken, or holds NaN or infinity.
    """
    options = options or ScanOptions()
    started = time.perf_counter()
    device = resolve_device(options.device)
    wanted = _wanted_layers(checkpoint, options)
    _check_context(checkpoint, options)
    _check_covariances(checkpoint, options)

    def scan_one(place: tuple[Stack, int]) -> LayerScan:
        stack, index = place
        layer = load_layer(checkpoint, index, stack=stack.name, device=device)
        return _scan_layer(layer, options)

    layers: list[LayerScan] = []
    for layer in _each(scan_one, wanted, narrow=_is_narrow(wanted, device)):
        layers.append(layer)
        if progress is not None:
            progress(len(layers), len(wanted))
    cost = Cost(
        seconds=time.perf_counter() - started,
        bytes_read=_bytes_read(checkpoint, wanted),
        peak_rss_bytes=peak_rss_bytes(),
    )
    return Scan(
        model=model_info(checkpoint),
        layers=tuple(layers),
        cost=cost,
        flags=_flags(checkpoint, layers, options),
    )


def _is_narrow(wanted: list[tuple[Stack, int]], device: torch.device) -> bool:
    return device.type == "cpu" and max(stack.d_model for stack, _ in wanted) <= NARROW


def _each(
    function: Callable[[tuple[Stack, int]], LayerScan],
    places: list[tuple[Stack, int]],
    *,
    narrow: bool,
) -> Iterator[LayerScan]:
    """Yield each layer's scan in order: layers side by side if narrow, else one with all cores.

    Products of a narrow head take microseconds. Sharing each out gains nothing on idle cores, and
    on busy ones it waits for a thread that has no core (measured: ten times slower). Two whole
    layers at once use two cores well, and are still small beside torch itself.
    """
    if not narrow or torch.get_num_threads() == 1:
        yield from map(function, places)
        return
    with torch_threads(1), ThreadPoolExecutor(max_workers=2) as pool:
        yield from pool.map(function, places)


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


def resolve_device(name: str) -> torch.device:
    """Return the device to compute on; "auto" takes CUDA where there is one.

    Raises:
        InputError: there is no such device here, or it has no float64.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "mps":
        raise InputError("mps has no float64, which exact readings need. Use --device cpu.")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("cuda was asked for, but torch sees no CUDA device. Use --device cpu.")
    if name not in {"cpu", "cuda"}:
        raise InputError(f"the device {name!r} is unknown. Expected auto, cpu, cuda or mps.")
    return torch.device(name)


class _LayerSums:
    """What is summed over the heads of a layer while they go by, one at a time."""

    def __init__(self, layer: AttentionLayer, options: ScanOptions) -> None:
        d, width = layer.stack.d_model, layer.n_heads * layer.stack.d_head
        rotary = options.context is not None and layer.spec.rotary is not None
        self.covariance = _covariance(layer, options)
        self.drift = LayerDrift(d, width)
        self.context_drift = LayerDrift(d, width) if rotary else None
        self.data_drift = LayerDrift(d, width) if self.covariance is not None else None
        whole = options.exact or d <= SPECTRUM_LIMIT
        self.values = torch.zeros(d, d, dtype=torch.float64, device=layer.device) if whole else None
        self.inner = self.norms = self.trace = self.speed = 0.0
        self.options = options

    def add(self, head: Head, maps: HeadMaps) -> None:
        self.drift.add(maps)
        if self.context_drift is not None and self.options.context is not None:
            self.context_drift.add(maps_in_context(head, self.options.context))
        if self.data_drift is not None:
            self.data_drift.add(maps, self.covariance)
        if self.values is not None:
            self.values.addmm_(maps.out, maps.value.T)
        self.inner += maps.inner_product
        self.norms += maps.value_norm * maps.score_norm
        self.trace += maps.value_out.trace().item()
        self.speed += maps.speed_limit


def _covariance(layer: AttentionLayer, options: ScanOptions) -> Covariance | None:
    found = (options.covariances or {}).get((layer.stack.name, layer.index))
    if found is None:
        return None
    d = layer.stack.d_model
    if found.shape != (d, d):
        raise InputError(
            f"the covariance for layer {layer.index} has shape {list(found.shape)}; "
            f"tokens there are {d} wide, so {d} x {d} was expected."
        )
    if not torch.isfinite(found).all():
        raise InputError(f"the covariance for layer {layer.index} holds NaN or infinity.")
    s = found.to(layer.device, torch.float64)
    size = s.abs().max().item()
    symmetric = bool((s - s.T).abs().max() <= 1e-5 * size)
    if size == 0 or not symmetric or torch.linalg.eigvalsh(s)[0] < -1e-5 * size:
        raise InputError(
            f"the covariance for layer {layer.index} is none: expected a symmetric matrix that is "
            "not zero and has no negative eigenvalue."
        )
    return s


def _scan_layer(layer: AttentionLayer, options: ScanOptions) -> LayerScan:
    sums = _LayerSums(layer, options)

    def scan_one(head: Head) -> HeadScan:  # a function, so that no head outlives its turn
        maps = HeadMaps.of(head)
        sums.add(head, maps)
        return _scan_head(head, maps, options.context, sums.covariance)

    heads = [scan_one(head) for head in layer]
    rates = sums.drift.rates(exact=options.exact)
    abscissa, radius, copying = _value_sum_spectrum(sums.values)
    # Where the spectrum was not computed its mean still bounds the abscissa from below.
    mean = sums.trace / layer.stack.d_model
    bound = abscissa if abscissa is not None else (mean if mean > 0 else None)
    log_change = None
    if sums.covariance is not None:
        log_change = predicted_log_change(layer, sums.covariance)
    return LayerScan(
        layer=layer.index,
        stack=layer.stack.name,
        **reading_of(rates),
        relative_error=rates.relative_error,
        alignment=sums.inner / sums.norms if sums.norms > 0 else 0.0,
        ov_trace=sums.trace,
        ov_abscissa=abscissa,
        ov_radius=radius,
        ov_copying=copying,
        rotary=_summed(sums.context_drift, options),
        data_aware=_summed(sums.data_drift, options),
        predicted_log_change=log_change,
        certificates=layer_certificates(
            [layer.head(0)], speed_limit=sums.speed, abscissa=bound, radius=radius or bound
        ),
        heads=tuple(heads),
    )


def _summed(drift: LayerDrift | None, options: ScanOptions) -> Reading | None:
    return None if drift is None else Reading(**reading_of(drift.rates(exact=options.exact)))


def _value_sum_spectrum(values: Tensor | None) -> tuple[float | None, float | None, float | None]:
    """Return abscissa, radius and copying score of the sum of value maps, where it was kept."""
    if values is None:
        return None, None, None
    spectrum = torch.linalg.eigvals(values)
    total = spectrum.abs().sum().item()
    copying = values.trace().item() / total if total > 0 else 0.0
    return spectrum.real.max().item(), spectrum.abs().max().item(), copying


def _scan_head(
    head: Head, maps: HeadMaps, context: int | None, covariance: Covariance | None
) -> HeadScan:
    sigmas = head.d_model * maps.alignment
    data_aware = None
    if covariance is not None:
        data_aware = Reading(**reading_of(head_rates(maps, covariance)))
    return HeadScan(
        head=head.index,
        **reading_of(head_rates(maps)),
        tendency=_tendency(sigmas),
        alignment=maps.alignment,
        alignment_sigmas=sigmas,
        alignment_signs=maps.alignment_signs,
        ov_abscissa=maps.value_abscissa,
        ov_radius=maps.value_radius,
        ov_copying=maps.copying,
        ov_norm=maps.value_norm,
        ov_speed_limit=maps.speed_limit,
        qk_symmetry=maps.score_symmetry,
        qk_norm=maps.score_norm,
        rotary=_rotary_reading(head, context),
        data_aware=data_aware,
        certificates=head_certificates(head, maps),
    )


def _tendency(sigmas: float) -> Tendency:
    if abs(sigmas) < CHANCE:
        return Tendency.NEUTRAL
    return Tendency.SPREADS if sigmas > 0 else Tendency.GATHERS


def _rotary_reading(head: Head, context: int | None) -> RotaryReading | None:
    if context is None or head.rotary is None:
        return None
    effect = rotary_effect(head, context)
    return RotaryReading(
        context=context,
        **reading_of(effect.rates),
        alignment=effect.alignment,
        survival=effect.size_survival,
        energy=tuple(frequency_energy(head, n_context=context).tolist()),
    )


# --- what the reader should know -------------------------------------------------------------


def _flags(
    checkpoint: Checkpoint, layers: Iterable[LayerScan], options: ScanOptions
) -> tuple[str, ...]:
    flags = list(checkpoint.architecture.flags)
    for stack in checkpoint.architecture.stacks:
        flags += _stack_flags(stack, options)
    types = {info.dtype for info in checkpoint.source.tensors.values()}
    packed = sorted(t for t in types if t.startswith("F8"))
    if packed:
        flags.append(f"weights are stored as {', '.join(packed)}: their unpacked values were read")
    listed = list(layers)
    worst = max((layer.relative_error for layer in listed), default=0.0)
    if worst > 0:
        flags.append(
            f"rates of whole layers are estimated (Lanczos quadrature, standard error of the "
            f"index up to {worst:.1%}); --exact computes them in full"
        )
    if any(layer.ov_abscissa is None for layer in listed):
        flags.append(
            "the spectrum of a layer's summed value maps was not computed at this width; "
            "--exact computes it"
        )
    return tuple(dict.fromkeys(flags))


def _stack_flags(stack: Stack, options: ScanOptions) -> list[str]:
    """Say what a reading of this stack leaves out; each line names the part and the reason."""
    rotary_here = stack.position is Position.ROTARY
    biased = stack.position in {Position.ALIBI, Position.T5_BIAS}
    windows = sorted({layer.window for layer in stack.layers if layer.window is not None})
    said = {
        "tokens are normalised in front of attention: its gain is folded into the maps, and rates "
        "and certificates speak of the flow of normalised tokens": stack.norm is not None,
        "queries and keys are normalised: score maps are taken at their typical length, exact in "
        "direction and approximate in size": stack.qk_norm is not None,
        f"scores pass a soft cap of {stack.softcap}: the score map is its slope at small "
        "scores": stack.softcap is not None,
        f"queries, keys and values are clipped at {stack.qk_clip}: maps are those of unclipped "
        "tokens": stack.qk_clip is not None,
        "attention's output is normalised: its gain is folded at the output's typical length, "
        "exact in direction and approximate in size": stack.output_norm,
        "rates are those at rotary offset 0; --context N adds what a context of N tokens leaves "
        "of them": rotary_here and options.context is None,
        f"the {stack.position.value} bias of scores depends on positions alone and is no part of "
        "a score map": biased,
        f"attention sees a window of {', '.join(map(str, windows))} tokens in some layers": bool(
            windows
        ),
    }
    return [text for text, applies in said.items() if applies]
