"""Ensembles: many small systems in one call of compiled code, each with steps of its own.

Enters: systems and their tokens. Leaves: where the tokens of each ended.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows._fast import fast_path
from orbitlens.flows._fast.many import Stretches, follow_many, shape_key
from orbitlens.flows.charts import LARGEST, RUNAWAY, has_scaled_chart
from orbitlens.flows.fields import lengths
from orbitlens.flows.integrate import (
    IntegrateOptions,
    checked_start,
    finish_flow,
    integrate_flow,
)
from orbitlens.flows.outcome import Fate, describe_ends, fate, fates
from orbitlens.flows.steps import StepLimits, Stop, Vector
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
    """Integrate every system up to `until`, in compiled code that goes from system to system.

    Each takes the steps, and ends where, it would alone. Those whose tokens run away or whose steps
    become too many are finished one by one.

    Raises:
        InputError: systems and tokens do not match, are too wide for the compiled integrator, or do
            not fit into memory together.
    """
    options = replace(options or IntegrateOptions(), n_saved=3)
    _check(systems, tokens)
    alike: dict[tuple[object, ...], list[int]] = {}
    for k, system in enumerate(systems):
        alike.setdefault(shape_key(system), []).append(k)
    ends: list[_EnsembleEnd | None] = [None] * len(systems)
    for members in alike.values():
        chosen = [systems[k] for k in members]
        found = _of_one_shape(chosen, tokens[members], until, options, n_threads)
        for k, end in zip(members, found, strict=True):
            ends[k] = end
    each = [end for end in ends if end is not None]
    return Ensemble(
        unit_tokens=torch.stack([end.unit_tokens for end in each]),
        log_scale=torch.tensor([end.log_scale for end in each], dtype=torch.float64),
        statuses=tuple(end.status for end in each),
        fates=tuple(end.fate for end in each),
        n_evaluations=torch.tensor([end.n_evaluations for end in each]),
    )


class _EnsembleEnd(NamedTuple):
    """Where one system's tokens ended."""

    unit_tokens: Tokens
    log_scale: float
    status: Status
    fate: Fate
    n_evaluations: int


def _of_one_shape(
    systems: Sequence[System],
    tokens: Float[Tensor, "system tokens d_model"],
    until: float,
    options: IntegrateOptions,
    n_threads: int | None,
) -> list[_EnsembleEnd]:
    """Integrate systems that differ in their numbers alone."""
    starts = _starts(systems, tokens, until, options)
    rows = lengths(starts.reshape(-1, starts.shape[-1])).reshape(starts.shape[:2])
    sizes = rows.amax(dim=1).log().numpy()
    changes = options.scaled_chart is None and has_scaled_chart(systems[0])
    scaled = bool(options.scaled_chart) or (changes and sizes.max() > LARGEST)
    if scaled or not options.may_be_compiled:
        return [_alone(*each, until, options) for each in zip(systems, tokens, strict=True)]
    times = np.linspace(0.0, until, options.n_saved)
    highs = np.minimum(np.maximum(sizes, 0.0) + RUNAWAY, LARGEST)
    found = follow_many(
        systems,
        starts.numpy(),
        times[1:],
        highs if changes else np.full(len(systems), math.inf),
        limits=StepLimits(rtol=options.rtol, max_steps=options.max_steps),
        n_threads=n_threads or torch.get_num_threads(),
    )
    done = np.flatnonzero(found.stops == Stop.DONE)
    regular = dict(
        zip(done.tolist(), _regular_ends(systems[0], starts, times, found, done), strict=True)
    )
    return [
        regular[k]
        if k in regular
        else _end_of(
            finish_flow(system, starts[k], until=until, options=options, first=found.of(k)), system
        )
        for k, system in enumerate(systems)
    ]


def _starts(
    systems: Sequence[System], tokens: Tensor, until: float, options: IntegrateOptions
) -> Float[Tensor, "system tokens d_model"]:
    """Return where all systems start; those without positions are checked as one."""
    if systems[0].positions is None:
        rows = checked_start(systems[0], tokens.reshape(-1, tokens.shape[-1]), until, options)
        return rows.reshape(tokens.shape)
    return torch.stack(
        [checked_start(*each, until, options) for each in zip(systems, tokens, strict=True)]
    )


def _regular_ends(
    system: System, starts: Tensor, times: Vector, found: Stretches, done: NDArray[np.int64]
) -> list[_EnsembleEnd]:
    """Return the ends of the systems that stayed in the raw chart."""
    saved = found.saved[done].reshape(len(done), len(times) - 1, *starts.shape[1:])
    kept = torch.cat([starts[done][:, None], torch.from_numpy(saved)], dim=1)
    scale = torch.zeros(kept.shape[:2], dtype=torch.float64)
    ends = describe_ends(system.geometry, torch.from_numpy(times), kept, scale)
    statuses = [end.status for end in ends]
    went = fates(system.geometry, kept, scale, statuses)
    counts = found.n_evaluations[done].tolist()
    return [
        _EnsembleEnd(*each)
        for each in zip(kept[:, -1], [0.0] * len(done), statuses, went, counts, strict=True)
    ]


def _alone(system: System, tokens: Tokens, until: float, options: IntegrateOptions) -> _EnsembleEnd:
    return _end_of(integrate_flow(system, tokens, until=until, options=options), system)


def _end_of(run: Trajectory, system: System) -> _EnsembleEnd:
    end = run.unit_tokens[-1], run.log_scale[-1].item()
    return _EnsembleEnd(*end, run.status, fate(run, system.geometry), run.n_evaluations)


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
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > available:
        raise InputError(
            f"this ensemble needs about {needed / 1e9:.1f} GB and the machine has "
            f"{available / 1e9:.1f} GB. Run it in parts."
        )
