"""The bridge to the compiled integrator: a `System` as arrays.

Enters: a `System`, or several of one shape, and a number of tokens. Leaves: `SystemArrays`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orbitlens.flows._fast.attention import ON_SPHERE, UNIT_INPUT, UNIT_OUTPUT, Array, SystemArrays
from orbitlens.flows._fast.lanes import padded_width
from orbitlens.flows._fast.mixer import mixer_address
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.rotary import plane_indices, resolve_rotary
from orbitlens.running._compiled.powers import power_tables

Places = NDArray[np.int64]


# Tensors of a system; None stands for what it does not have.
TENSORS = ("w_q", "w_k", "w_v", "w_o", "b_q", "b_k", "drift", "alibi_slopes")


def system_arrays(system: System, n_tokens: int, rtol: float = 0.0) -> SystemArrays:
    """Return a system as the arrays of compiled code, exact enough for a tolerance."""
    tensors = {name: getattr(system, name) for name in TENSORS}
    positions = system.positions if system.reinjected else None
    return _arrays(system, {**tensors, "positions": positions}, n_tokens, rtol, ())


def stacked_arrays(systems: Sequence[System], n_tokens: int, rtol: float) -> SystemArrays:
    """Return systems of one shape and one setting, as arrays with an axis of systems in front."""
    first = systems[0]
    present = [name for name in TENSORS if getattr(first, name) is not None]
    present += ["positions"] if first.reinjected else []
    stacks = {name: torch.stack([getattr(system, name) for system in systems]) for name in present}
    tensors = dict.fromkeys((*TENSORS, "positions")) | stacks
    return _arrays(first, tensors, n_tokens, rtol, (len(systems),))


def _arrays(
    system: System,
    tensors: Mapping[str, Tensor | None],
    n_tokens: int,
    rtol: float,
    axes: tuple[int, ...],
) -> SystemArrays:
    cosine, sine, first, second = _rotary_tables(system, n_tokens)
    flat, table = np.empty((*axes, 0)), np.empty((*axes, 0, 0))

    def plain(name: str, missing: Array) -> Array:
        value = tensors[name]
        return missing if value is None else _array(value)

    def padded(name: str, dim: int) -> Array:
        value = tensors[name]
        return table if value is None else _padded(value, dim)

    return SystemArrays(
        w_q=padded("w_q", -1),
        w_k=padded("w_k", -1),
        w_v=padded("w_v", -1),
        w_o=padded("w_o", -2),
        width=system.d_head,
        b_q=padded("b_q", -1),
        b_k=padded("b_k", -1),
        drift=plain("drift", flat),
        slopes=plain("alibi_slopes", flat),
        cosine=cosine,
        sine=sine,
        first=first,
        second=second,
        positions=plain("positions", table),
        beta=float(system.beta),
        causal=system.mask is Mask.CAUSAL,
        window=system.window or 0,
        geometry=_geometry_bits(system.geometry),
        unnormalised=system.unnormalised,
        powers=power_tables(rtol),
        mixer=mixer_address(),
    )


def _array(value: Tensor) -> Array:
    return np.ascontiguousarray(value.double().numpy())


def _padded(value: Tensor, dim: int) -> Array:
    """Return an array whose head width is filled up with zeros."""
    shape = list(value.shape)
    shape[dim] = padded_width(shape[dim])
    padded = np.zeros(shape)
    padded[tuple(map(slice, value.shape))] = value.numpy()
    return padded


def _geometry_bits(geometry: Geometry) -> int:
    return (
        ON_SPHERE * geometry.on_sphere
        + UNIT_INPUT * geometry.normalises_input
        + UNIT_OUTPUT * geometry.normalises_output
    )


def _rotary_tables(system: System, n_tokens: int) -> tuple[Array, Array, Places, Places]:
    if system.rotary is None:
        none = np.empty(0, dtype=np.int64)
        return np.empty((0, 0)), np.empty((0, 0)), none, none
    rotation = resolve_rotary(system.rotary, n_tokens)
    places = torch.arange(n_tokens, dtype=torch.float64)
    angles = rotation.frequencies[:, None] * places
    first, second = plane_indices(rotation)
    return (
        _array(angles.cos() * rotation.factor),
        _array(angles.sin() * rotation.factor),
        first.numpy(),
        second.numpy(),
    )
