"""The bridge to the compiled integrator: a `System` as arrays.

Enters: a `System` and a number of tokens. Leaves: `SystemArrays`.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from orbitlens.flows._fast.attention import ON_SPHERE, UNIT_INPUT, UNIT_OUTPUT, Array, SystemArrays
from orbitlens.flows._fast.rows import LANES
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.rotary import plane_indices, resolve_rotary

Places = NDArray[np.int64]


def system_arrays(system: System, n_tokens: int) -> SystemArrays:
    """Return a system as the arrays of compiled code."""
    flat, table = np.empty(0), np.empty((0, 0))
    cosine, sine, first, second = _rotary_tables(system, n_tokens)
    return SystemArrays(
        w_q=_padded(system.w_q, -1),
        w_k=_padded(system.w_k, -1),
        w_v=_padded(system.w_v, -1),
        w_o=_padded(system.w_o, -2),
        width=system.d_head,
        b_q=table if system.b_q is None else _padded(system.b_q, -1),
        b_k=table if system.b_k is None else _padded(system.b_k, -1),
        drift=flat if system.drift is None else _array(system.drift),
        slopes=flat if system.alibi_slopes is None else _array(system.alibi_slopes),
        cosine=cosine,
        sine=sine,
        first=first,
        second=second,
        positions=_array(system.positions)
        if system.reinjected and system.positions is not None
        else table,
        beta=float(system.beta),
        causal=system.mask is Mask.CAUSAL,
        window=system.window or 0,
        geometry=_geometry_bits(system.geometry),
        unnormalised=system.unnormalised,
    )


def _array(value: Tensor) -> Array:
    return np.ascontiguousarray(value.double().numpy())


def _padded(value: Tensor, dim: int) -> Array:
    """Return an array whose head width is rounded up to whole LANES, with zeros."""
    shape = list(value.shape)
    shape[dim] += -shape[dim] % LANES
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
