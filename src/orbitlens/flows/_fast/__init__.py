"""Compiled code, and the one call that decides who gets it.

Enters: a `System` and its number of tokens. Leaves: a `FastPath`, whose parts are None where plain
code is as good. What stays here gains at least 1.5 times the processor time of what it replaces;
everything it does, `fields.py` and `adaptive.py` do too.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from orbitlens.flows._fast.arrays import system_arrays
from orbitlens.flows._fast.dop853 import follow
from orbitlens.flows._fast.head_mixing import HeadMixing
from orbitlens.flows._fast.way_back import WayBack, way_back_of
from orbitlens.flows.steps import Segment, StepLimits, Stop, Vector
from orbitlens.flows.system import System

WIDEST = 16  # d_model and d_head of whole integrations: beyond, they are not what takes time
MOST_TOKENS = 512  # of whole integrations

Follow = Callable[[Vector, float, Vector, bool, StepLimits], Segment]


@dataclass(frozen=True, kw_only=True)
class FastPath:
    """What of a system can be left to compiled code."""

    mix: HeadMixing  # attention of all heads
    follow: Follow | None  # whole stretches of an integration by DOP853, in either chart
    way_back: Callable[[float], WayBack] | None  # a flow and its gradients, at a tolerance


def fast_path(system: System, n_tokens: int) -> FastPath:
    """Decide by its sizes what of a system compiled code does."""
    narrow = system.d_head <= WIDEST and system.d_model <= WIDEST
    small = narrow and n_tokens <= MOST_TOKENS and system.noise == 0
    return FastPath(
        mix=HeadMixing.of(system, n_tokens),
        follow=_follower(system, n_tokens) if small else None,
        way_back=way_back_of(system, n_tokens) if small else None,
    )


def _follower(system: System, n_tokens: int) -> Follow:
    def run(y: Vector, t: float, moments: Vector, scaled: bool, limits: StepLimits) -> Segment:
        arrays = system_arrays(system, n_tokens, limits.rtol)
        saved, kept, y, t, n_steps, n_evaluations, stop, _ = follow(
            arrays,
            np.ascontiguousarray(y),
            t,
            moments,
            scaled,
            n_tokens,
            limits.rtol,
            limits.max_steps,
            limits.low,
            limits.high,
        )
        return Segment(
            saved=list(saved[:kept]),
            y=y,
            t=float(t),
            n_steps=n_steps,
            n_evaluations=n_evaluations,
            stop=Stop(stop),
        )

    return run
