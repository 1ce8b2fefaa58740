"""One attention layer -> its reading, and those of its heads.

Enters: an `AttentionLayer`. Leaves: a `LayerScan`. One head is in memory at a time.
"""

from functools import partial

import torch

from orbitlens._types import ComplexSpectrum, Covariance
from orbitlens.errors import InputError
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.scanning.options import ScanOptions
from orbitlens.scanning.scan_result import (
    HeadScan,
    LayerScan,
    Orientation,
    Reading,
    RotaryReading,
    reading_of,
)
from orbitlens.theory.certificates import Certificate
from orbitlens.theory.eigenpairs import Growth, Matrix
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.normalised import (
    ValueFlow,
    head_spread,
    normalised_head_certificates,
    normalised_layer_certificates,
)
from orbitlens.theory.plain import head_certificates, is_raw, layer_certificates, speed_bound
from orbitlens.theory.positional import frequency_energy, maps_in_context, rotary_effect
from orbitlens.theory.rates import LayerDrift, head_rates, predicted_log_change
from orbitlens.theory.spectrum import eigenvalues

CHANCE = 3.0  # sigmas of alignment beyond which a head's orientation is not taken for chance
SPECTRUM_LIMIT = 512  # widest sum of value maps whose whole spectrum is computed unasked


class _LayerSums:
    """What is summed over the heads of a layer while they go by, one at a time."""

    def __init__(self, layer: AttentionLayer, options: ScanOptions) -> None:
        d, width = layer.stack.d_model, layer.n_heads * layer.stack.d_head
        rotary = options.context is not None and layer.spec.rotary is not None
        self.covariance = _covariance(layer, options)
        new = partial(LayerDrift, d, width, exact=options.exact)
        self.drift = new()
        self.context_drift = new() if rotary else None
        self.data_drift = new() if self.covariance is not None else None
        whole = options.exact or d <= SPECTRUM_LIMIT
        self.values = torch.zeros(d, d, dtype=torch.float64, device=layer.device) if whole else None
        self.inner = self.norms = self.trace = self.speed = self.size = 0.0
        self.shift = layer.b_o.clone()
        self.spreads: list[float | None] = []
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
        self.speed += speed_bound(maps)
        self.size += (maps.out.norm() * maps.value.norm()).item()
        self.shift += head.value_shift
        self.spreads.append(head_spread(head, maps))

    def certificates(self, head: Head, spectrum: ComplexSpectrum | None) -> tuple[Certificate, ...]:
        """Return what is proved of all heads at once, `head` one of them, in the model's flow."""
        if is_raw(head):
            return layer_certificates(
                [head], speed_limit=self.speed, growth=self._growth(), drift=self.shift
            )
        flow = ValueFlow(
            by="all heads of the layer",
            head=head,
            still=not bool(self.shift.any()),
            spectrum=spectrum,
            matrix=self._summed_values,
            has_kernel=False,
        )
        return normalised_layer_certificates(flow, self.spreads)

    def _summed_values(self) -> tuple[Matrix, float]:
        assert self.values is not None  # asked for where there is a spectrum of it
        return self.values.cpu().numpy(), self.size

    def _growth(self) -> Growth:
        """Return what is certain of the summed value maps' abscissa: else its mean bounds it."""
        if self.values is not None:
            return Growth.of(self.values.cpu().numpy(), self.size)
        mean = self.trace / self.drift.d_model - 1e-13 * self.size
        return Growth(abscissa=None, at_least=max(mean, 0.0), decays=False)


def _covariance(layer: AttentionLayer, options: ScanOptions) -> Covariance | None:
    given = (options.covariances or {}).get((layer.stack.name, layer.index))
    if given is None:
        return None
    d = layer.stack.d_model
    if given.shape != (d, d):
        raise InputError(
            f"the covariance for layer {layer.index} has shape {list(given.shape)}; "
            f"tokens there are {d} wide, so {d} x {d} was expected."
        )
    if not torch.isfinite(given).all():
        raise InputError(f"the covariance for layer {layer.index} holds NaN or infinity.")
    s = given.to(layer.device, torch.float64)
    size = s.abs().max().item()
    symmetric = bool((s - s.T).abs().max() <= 1e-5 * size)
    if size == 0 or not symmetric or torch.linalg.eigvalsh(s)[0] < -1e-5 * size:
        raise InputError(
            f"the covariance for layer {layer.index} is none: expected a symmetric matrix that is "
            "not zero and has no negative eigenvalue."
        )
    return s


def scan_layer(layer: AttentionLayer, options: ScanOptions) -> LayerScan:
    """Return the reading of a layer and of each of its heads."""
    sums = _LayerSums(layer, options)

    def scan_one(head: Head) -> HeadScan:  # a function, so that no head outlives its turn
        maps = HeadMaps.of(head)
        sums.add(head, maps)
        return _scan_head(head, maps, sums)

    heads = [scan_one(head) for head in layer]
    rates = sums.drift.rates()
    spectrum = None if sums.values is None else eigenvalues(sums.values)
    abscissa, radius, copying = _extremes(spectrum, sums.trace)
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
        rotary=_summed(sums.context_drift),
        data_aware=_summed(sums.data_drift),
        predicted_log_change=log_change,
        on_text=None,
        certificates=sums.certificates(layer.head(0), spectrum),
        heads=tuple(heads),
    )


def _summed(drift: LayerDrift | None) -> Reading | None:
    return None if drift is None else Reading(**reading_of(drift.rates()))


def _extremes(
    spectrum: ComplexSpectrum | None, trace: float
) -> tuple[float | None, float | None, float | None]:
    """Return abscissa, radius and copying score of a sum of value maps, where it was kept."""
    if spectrum is None:
        return None, None, None
    total = spectrum.abs().sum().item()
    copying = trace / total if total > 0 else 0.0
    return spectrum.real.max().item(), spectrum.abs().max().item(), copying


def _scan_head(head: Head, maps: HeadMaps, sums: _LayerSums) -> HeadScan:
    sigmas = head.d_model * maps.alignment
    data_aware = None
    if sums.covariance is not None:
        data_aware = Reading(**reading_of(head_rates(maps, sums.covariance)))
    return HeadScan(
        head=head.index,
        **reading_of(head_rates(maps)),
        orientation=_orientation(sigmas),
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
        rotary=_rotary_reading(head, sums.options.context),
        data_aware=data_aware,
        on_text=None,
        certificates=head_certificates(head, maps)
        if is_raw(head)
        else normalised_head_certificates(head, maps, sums.spreads[-1]),
    )


def _orientation(sigmas: float) -> Orientation:
    if abs(sigmas) < CHANCE:
        return Orientation.NEUTRAL
    return Orientation.ALIGNED if sigmas > 0 else Orientation.OPPOSED


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
