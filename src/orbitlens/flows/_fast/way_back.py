"""Flows of few narrow tokens and their gradients, both by compiled code.

Enters: a `System`. Leaves: a `WayBack`, which follows tokens and keeps what its way back needs, or
None where steps are taken one by one (`flows/way_back.py`): heads wider than four, ALiBi, weights
that are not normalised, and outputs that are (Peri-LN, nGPT).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from orbitlens.flows._fast.arrays import system_arrays
from orbitlens.flows._fast.attention import Array, SystemArrays
from orbitlens.flows._fast.back import Gradients, go_back
from orbitlens.flows._fast.dop853 import N_STAGES, follow
from orbitlens.flows._fast.lanes import WIDEST_LANES
from orbitlens.flows.steps import Stop
from orbitlens.flows.system import System

MOST_NUMBERS = 2**22  # of stages that are kept; later steps take theirs anew on the way back


@dataclass(frozen=True, kw_only=True)
class Taken:
    """The steps of a run."""

    end: Tensor
    t: float
    stop: Stop
    starts: Array  # steps, coordinates
    lengths: Array
    stages: Array  # of the first steps: steps, stages, coordinates


@dataclass(frozen=True, kw_only=True)
class WayBack:
    """A system whose flow and gradients are compiled."""

    system: System
    n_tokens: int
    rtol: float

    @cached_property
    def _arrays(self) -> SystemArrays:
        return system_arrays(self.system, self.n_tokens, self.rtol)

    def follow(self, start: Tensor, until: float, max_steps: int) -> Taken:
        """Follow tokens, and keep the steps."""
        y = np.ascontiguousarray(start.double().numpy()).ravel()
        most = MOST_NUMBERS // (N_STAGES * y.size)
        far, times, n = np.inf, np.array([until]), self.n_tokens
        limits = (self.rtol, max_steps, -far, far, most)
        found = follow(self._arrays, y, 0.0, times, False, n, *limits)
        _, _, last, t, _, _, stop, (starts, lengths, stages) = found
        return Taken(
            end=torch.from_numpy(last.reshape(start.shape)),
            t=float(t),
            stop=Stop(stop),
            starts=starts,
            lengths=lengths,
            stages=stages,
        )

    def back(self, taken: Taken, gradient: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the gradients with respect to the start and to the system's tensors, by name."""
        arrays, system = self._arrays, self.system
        sums = Gradients(*(np.zeros_like(getattr(arrays, name)) for name in Gradients._fields))
        moved = gradient.double().numpy().ravel().copy()
        go_back(arrays, taken.starts, taken.lengths, taken.stages, self.n_tokens, moved, sums)
        found = {name: torch.from_numpy(each) for name, each in sums._asdict().items() if each.size}
        for name, value in found.items():  # heads are filled up with zeros
            shape = getattr(system, name).shape
            found[name] = value[tuple(map(slice, shape))].contiguous()
        return torch.from_numpy(moved.reshape(gradient.shape)), found


def way_back_of(system: System, n_tokens: int) -> Callable[[float], WayBack] | None:
    """Return how to make a compiled way back for a tolerance, where there is one."""
    plain = not system.unnormalised and system.alibi_slopes is None
    if system.d_head > WIDEST_LANES or not plain or system.geometry.normalises_output:
        return None
    return lambda rtol: WayBack(system=system, n_tokens=n_tokens, rtol=rtol)
