"""The bridge to the compiled integrator: which systems fit it, and how they are handed over.

Enters: a `System` and tokens. Leaves: saved moments, as `integrate.py` keeps them.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows import kernel
from orbitlens.flows.charts import Vector
from orbitlens.flows.kernel import KernelSystem
from orbitlens.flows.loops import LANES
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.rotary import plane_indices, resolve_rotary

# Beyond these the machine's own matrix products win over the compiled loops.
WIDEST = 16  # d_model and d_head
MOST_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class CompiledRun:
    """What the compiled integrator kept."""

    saved: list[tuple[Tokens, float]]
    n_steps: int
    n_evaluations: int
    status: int  # one of the kernel's codes
    time: float
    switched_at: float | None


def fits_kernel(system: System, n_tokens: int) -> bool:
    """Say whether a system is small enough for the compiled integrator."""
    return (
        system.d_model <= WIDEST
        and system.d_head <= WIDEST
        and n_tokens <= MOST_TOKENS
        and system.noise == 0
    )


def kernel_system(system: System, n_tokens: int) -> KernelSystem:
    """Return a system as the kernel's arrays."""
    flat, table = np.empty(0), np.empty((0, 0))
    cosine, sine, first, second = _rotary_tables(system, n_tokens)
    return KernelSystem(
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


def _array(value: Tensor) -> Vector:
    return np.ascontiguousarray(value.double().numpy())


def _padded(value: Tensor, dim: int) -> Vector:
    """Return an array whose head width is rounded up to whole LANES, with zeros."""
    shape = list(value.shape)
    shape[dim] += -shape[dim] % LANES
    padded = np.zeros(shape)
    padded[tuple(map(slice, value.shape))] = value.numpy()
    return padded


def _geometry_bits(geometry: Geometry) -> int:
    return (
        kernel.ON_SPHERE * geometry.on_sphere
        + kernel.UNIT_INPUT * geometry.normalises_input
        + kernel.UNIT_OUTPUT * geometry.normalises_output
    )


def _rotary_tables(
    system: System, n_tokens: int
) -> tuple[Vector, Vector, "np.ndarray", "np.ndarray"]:
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


def run_compiled(  # noqa: PLR0913 - what the kernel takes
    system: System,
    start: Tokens,
    times: Vector,
    *,
    rtol: float,
    max_steps: int,
    spread_limit: float,
    scaled: bool,
) -> CompiledRun:
    """Integrate through `times`, changing to the scaled chart where tokens run away."""
    n = start.shape[0]
    arrays = kernel_system(system, n)
    y = _array(start).ravel()
    y = _to_scaled(y, 0.0) if scaled else y
    saved = [(start, 0.0)]
    t, n_steps, n_evaluations, switched = 0.0, 0, 0, None
    while True:
        rest = times[len(saved) :]
        moments, kept, y, t, steps, evaluations, status = kernel.integrate(
            arrays, y, t, rest, scaled, n, rtol, max_steps - n_steps, spread_limit
        )
        saved += [_decoded(row, n, scaled) for row in moments[:kept]]
        n_steps, n_evaluations = n_steps + steps, n_evaluations + evaluations
        if status != kernel.RUNS_AWAY or len(saved) == len(times):
            break
        scaled, switched = True, t
        y = _to_scaled(y, 0.0)
    return CompiledRun(
        saved=saved,
        n_steps=n_steps,
        n_evaluations=n_evaluations,
        status=int(status),
        time=float(t),
        switched_at=switched,
    )


def _to_scaled(y: Vector, log_scale: float) -> Vector:
    size = float(np.linalg.norm(y))
    return np.append(y / size, log_scale + math.log(size))


def _decoded(row: Vector, n_tokens: int, scaled: bool) -> tuple[Tokens, float]:
    tokens = row[:-1] if scaled else row
    shaped = torch.from_numpy(tokens.reshape(n_tokens, -1).copy())
    return shaped, float(row[-1]) if scaled else 0.0
