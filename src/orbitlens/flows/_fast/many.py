"""Many small systems in one call of compiled code, each with its own steps and its own end.

Enters: systems of one shape, stacked. Leaves: what `dop853.follow` says of each, in arrays: the
same loop runs on the same numbers, so that they are equal to rounding.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, no_type_check

import numpy as np
from numpy.typing import NDArray

from orbitlens.flows._fast.arrays import stacked_arrays
from orbitlens.flows._fast.attention import Array, SystemArrays
from orbitlens.flows._fast.dop853 import follow
from orbitlens.flows.steps import Segment, StepLimits, Stop
from orbitlens.flows.system import System
from orbitlens.running._compiled.compiling import compiled
from orbitlens.running.threads import do_parts

TOGETHER = 8  # systems that a thread takes at a time
SETTINGS = ("mask", "window", "geometry", "reinjected", "unnormalised")


@dataclass(frozen=True, kw_only=True)
class Stretches:
    """One stretch of an integration of each system."""

    saved: Array  # systems, moments, coordinates
    n_saved: NDArray[np.int64]
    y: Array  # systems, coordinates
    t: Array
    n_steps: NDArray[np.int64]
    n_evaluations: NDArray[np.int64]
    stops: NDArray[np.int64]

    def of(self, k: int) -> Segment:
        """Return the stretch of one system."""
        return Segment(
            saved=list(self.saved[k, : self.n_saved[k]]),
            y=self.y[k],
            t=float(self.t[k]),
            n_steps=int(self.n_steps[k]),
            n_evaluations=int(self.n_evaluations[k]),
            stop=Stop(int(self.stops[k])),
        )


def shape_key(system: System) -> tuple[Any, ...]:
    """Return what two systems must share to be stacked: shapes and settings, not numbers."""
    tensors = [getattr(system, name) for name in ("w_q", "b_q", "b_k", "drift", "alibi_slopes")]
    shapes = [None if tensor is None else tuple(tensor.shape) for tensor in tensors]
    settings = [getattr(system, name) for name in SETTINGS]
    return (*shapes, *settings, system.positions is None, repr(system.rotary))


@no_type_check
@compiled(nogil=True)
def _follow_some(stacked, betas, starts, times, n, rtol, max_steps, highs, begin, end, out):
    """Follow the systems begin ... end - 1 in the raw chart, and write what comes out."""
    saved, last, t, counts = out
    for s in range(begin, end):
        system = SystemArrays(
            stacked.w_q[s],
            stacked.w_k[s],
            stacked.w_v[s],
            stacked.w_o[s],
            stacked.width,
            stacked.b_q[s],
            stacked.b_k[s],
            stacked.drift[s],
            stacked.slopes[s],
            stacked.cosine,
            stacked.sine,
            stacked.first,
            stacked.second,
            stacked.positions[s],
            betas[s],
            stacked.causal,
            stacked.window,
            stacked.geometry,
            stacked.unnormalised,
            stacked.powers,
            stacked.mixer,
        )
        found = follow(system, starts[s], 0.0, times, False, n, rtol, max_steps, -np.inf, highs[s])
        saved[s] = found[0]
        last[s] = found[2]
        t[s] = found[3]
        counts[0, s], counts[1, s] = found[1], found[4]
        counts[2, s], counts[3, s] = found[5], found[6]


def follow_many(
    systems: Sequence[System],
    starts: Array,
    times: Array,
    highs: Array,
    *,
    limits: StepLimits,
    n_threads: int,
) -> Stretches:
    """Follow systems that share `shape_key` from time 0, each until its size is too high.

    `starts` is systems x tokens x d_model; `limits` says the rest.
    """
    n_systems, n, _ = starts.shape
    arrays = stacked_arrays(systems, n, limits.rtol)
    betas = np.array([system.beta for system in systems])
    flat = np.ascontiguousarray(starts.reshape(n_systems, -1))
    saved = np.empty((n_systems, len(times), flat.shape[1]))
    last, t = np.empty_like(flat), np.empty(n_systems)
    counts = np.empty((4, n_systems), dtype=np.int64)
    out = (saved, last, t, counts)
    each = (arrays, betas, flat, times, n, limits.rtol, limits.max_steps, highs)
    parts = [(k, min(k + TOGETHER, n_systems)) for k in range(0, n_systems, TOGETHER)]
    do_parts(lambda begin, end: _follow_some(*each, begin, end, out), parts, n_threads)
    kept, n_steps, n_evaluations, stops = counts
    return Stretches(
        saved=saved,
        n_saved=kept,
        y=last,
        t=t,
        n_steps=n_steps,
        n_evaluations=n_evaluations,
        stops=stops,
    )
