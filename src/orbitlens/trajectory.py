"""Trajectory: tokens at each depth. Simulation and measurement both return it.

Enters: nothing (plain data). Leaves: frozen dataclasses. Tokens that ran to infinity are kept as
unit-size tokens and the logarithm of their scale, so that nothing overflows.
"""

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._shown import Shown


class Status(StrEnum):
    """How a trajectory ended; `Trajectory.ending` says it in words, with the time."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    CONVERGED = "converged"
    COLLAPSED = "collapsed"
    STEP_LIMIT = "step limit"


ENDINGS = {
    Status.FINISHED: "ran to t = {until:g}; tokens neither ran away nor came to rest",
    Status.DIVERGED: "tokens ran away: they left every bounded region at t = {time:.4g}",
    Status.CONVERGED: "all tokens came to rest at one point at t = {time:.4g}",
    Status.COLLAPSED: "tokens collapsed to {clusters} clusters at t = {time:.4g}",
    Status.STEP_LIMIT: "stopped at t = {time:.4g} by the limit on steps: ask for more steps, a "
    "looser tolerance or a shorter time",
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened on the way."""

    time: float
    what: str


@dataclass(frozen=True, kw_only=True)
class Trajectory(Shown):
    """Tokens at saved times (or layers)."""

    times: Float[Tensor, " steps"]
    unit_tokens: Float[Tensor, "steps tokens d_model"]  # tokens divided by exp(log_scale)
    log_scale: Float[Tensor, " steps"]  # 0 where tokens are stored as they are
    status: Status
    status_time: float
    n_clusters: int  # at the end
    n_evaluations: int
    n_steps: int
    error_estimate: float  # sum of the steps' local error estimates, relative to the tolerance
    events: tuple[Event, ...]

    @property
    def tokens(self) -> Float[Tensor, "steps tokens d_model"]:
        """The tokens themselves; infinite where they are too large for a float64."""
        grown = self.unit_tokens * torch.exp(self.log_scale)[:, None, None]
        return torch.where(self.unit_tokens == 0, 0.0, grown)  # not NaN where the scale is infinite

    @property
    def final(self) -> Float[Tensor, "tokens d_model"]:
        """The tokens at the end."""
        return self.tokens[-1]

    @property
    def ending(self) -> str:
        """What happened, in words."""
        until = self.times[-1].item()
        clusters = self.n_clusters
        return ENDINGS[self.status].format(until=until, time=self.status_time, clusters=clusters)
