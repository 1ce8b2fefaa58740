"""Ensembles: many small systems at once, one a core, each with steps of its own.

Enters: systems and their tokens. Leaves: where the tokens of each ended.
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows._fast import fast_path
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate
from orbitlens.flows.system import System
from orbitlens.trajectory import Status, Trajectory


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Where each system's tokens ended."""

    unit_tokens: Float[Tensor, "system tokens d_model"]  # divided by exp(log_scale)
    log_scale: Float[Tensor, " system"]
    statuses: tuple[Status, ...]
    fates: tuple[Fate, ...]
    n_evaluations: Int[Tensor, " system"]


def simulate_ensemble(
    systems: Sequence[System],
    tokens: Float[Tensor, "system tokens d_model"],
    *,
    until: float,
    options: IntegrateOptions | None = None,
    n_threads: int | None = None,
) -> Ensemble:
    """Integrate every system up to `until`; the compiled integrator lets threads run side by side.

    Raises:
        InputError: systems and tokens do not match, are too wide for the compiled integrator, or do
            not fit into memory together.
    """
    options = replace(options or IntegrateOptions(), n_saved=3)
    _check(systems, tokens)

    def run(pair: tuple[System, Tokens]) -> Trajectory:
        return integrate_flow(pair[0], pair[1], until=until, options=options)

    with ThreadPoolExecutor(n_threads or os.cpu_count()) as pool:
        results = list(pool.map(run, zip(systems, tokens, strict=True)))
    return Ensemble(
        unit_tokens=torch.stack([result.unit_tokens[-1] for result in results]),
        log_scale=torch.stack([result.log_scale[-1] for result in results]),
        statuses=tuple(result.status for result in results),
        fates=tuple(fate(r, s.geometry) for r, s in zip(results, systems, strict=True)),
        n_evaluations=torch.tensor([result.n_evaluations for result in results]),
    )


def _check(systems: Sequence[System], tokens: Tensor) -> None:
    if not systems or tokens.ndim != 3 or tokens.shape[0] != len(systems):
        raise InputError(
            f"there are {len(systems)} systems and tokens of shape {list(tokens.shape)}; expected "
            "systems x tokens x d_model."
        )
    if any(fast_path(system, tokens.shape[1]).follow is None for system in systems):
        raise InputError(
            "some of these systems are too wide for the compiled integrator, or have noise. "
            "Run them one at a time."
        )
    check_memory(math.prod(tokens.shape))


def check_memory(n_numbers: int) -> None:
    """Refuse an ensemble that would not fit: starts, ends and copies, 8 bytes a number."""
    if not hasattr(os, "sysconf"):  # Windows does not say
        return
    needed = 8 * 8 * n_numbers
    if not hasattr(os, "sysconf"):  # a system that does not tell
        return
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InputError(
            f"this ensemble needs about {needed / 1e9:.1f} GB and the machine has "
            f"{available / 1e9:.1f} GB. Run it in parts."
        )
