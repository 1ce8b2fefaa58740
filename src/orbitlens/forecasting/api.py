"""`forecast`: how an architecture moves tokens before it has learnt anything, in closed form.

Enters: a blueprint, a config, or a path to one. Leaves: an `ArchitectureForecast`. No weights are
made and nothing is run; a few heads a layer are drawn as their scores are distributed.
"""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from orbitlens.errors import InputError
from orbitlens.files import read_json
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.configs import blueprint_of
from orbitlens.forecasting.definite import definite_walk
from orbitlens.forecasting.forecast_result import (
    ArchitectureForecast,
    DepthForecast,
    Remedy,
    TrainingVerdict,
)
from orbitlens.forecasting.grams import Array, plain_walk
from orbitlens.forecasting.trainability import learnt, readings_of, verdict_of
from orbitlens.forecasting.words import COLLAPSED
from orbitlens.theory.ranks import entropy_rank

LARGEST_CONFIG = 1_000_000  # bytes


def forecast(
    config: Any,  # noqa: ANN401 - a blueprint, a config, or a path
    *,
    name: str | None = None,
    context: int | None = None,
    seed: int = 0,
    advise: bool = True,
) -> ArchitectureForecast:
    """Say what untrained layers of an architecture do to tokens and gradients.

    Args:
        config: a `Blueprint`, a config of transformers (object or mapping), a config.json or the
            folder it lies in.
        name: what sentences call it.
        context: tokens of a context, in place of the config's.
        seed: of the tokens and heads that are drawn.
        advise: try changes where directions collapse or training would fail.

    Raises:
        InputError: the sizes do not fit each other.
        UnknownFamilyError: it is not known how models of this family start.
    """
    started = time.perf_counter()
    plan, called = plan_of(config)
    plan = plan if context is None else replace(plan, context=context)
    depths = tuple(depths_of(plan, seed))
    readings = readings_of(plan, depths)
    verdict = verdict_of(readings, learnt().thresholds)
    is_sound = depths[-1].cosine <= COLLAPSED and verdict is not TrainingVerdict.FAILS
    remedies = tuple(_remedies(plan, seed)) if advise and not is_sound else ()
    return ArchitectureForecast(
        name=name or called,
        blueprint=plan,
        depths=depths,
        readings=readings,
        verdict=verdict,
        remedies=remedies,
        seconds=time.perf_counter() - started,
        flags=(),
    )


def plan_of(config: Any) -> tuple[Blueprint, str]:  # noqa: ANN401
    """Return the blueprint that was meant, and a name for it."""
    if isinstance(config, Blueprint):
        return config, f"a {config.norm}-norm stack"
    if isinstance(config, str | Path):
        file = Path(config) / "config.json" if Path(config).is_dir() else Path(config)
        return blueprint_of(_read(file), str(file)), file.parent.name or str(file)
    data = config if isinstance(config, Mapping) else getattr(config, "to_dict", dict)()
    return blueprint_of(data), f"a {data.get('model_type')}"


def _read(file: Path) -> dict[str, Any]:
    try:
        data = read_json(file, LARGEST_CONFIG)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file}: no config can be read there ({error}). Give a config.json, or sizes."
        ) from error
    if not isinstance(data, dict):
        raise InputError(f"{file}: holds {json.dumps(data)[:40]}, expected an object.")
    return data


# --- by depth --------------------------------------------------------------------------------


def depths_of(plan: Blueprint, seed: int) -> Iterator[DepthForecast]:
    """Yield what is forecast in front of each layer, and behind the last."""
    rng = np.random.default_rng(seed)
    walk = plain_walk(plan, rng) if plan.refinement == "none" else definite_walk(plan, rng)
    total = float(np.trace(walk.back[-1]))
    deviations = [*walk.deviations, None]
    for layer, (gram, back) in enumerate(zip(walk.grams, walk.back, strict=True)):
        size_of_gradient = math.sqrt(np.trace(back) / total)
        yield _depth(layer, gram, deviations[layer], size_of_gradient, walk.log_kept[layer])


def _depth(
    layer: int, gram: Array, deviation: float | None, size_of_gradient: float, log_kept: float
) -> DepthForecast:
    cosines = _cosines(gram)
    count = len(gram)
    mean = float((cosines.sum() - count) / (count * (count - 1))) if count > 1 else 0.0
    limit = math.sqrt(2 * math.log(max(count, 2)))
    return DepthForecast(
        layer=layer,
        cosine=mean,
        log_spread=math.log1p(-mean) if mean < 1 else -math.inf,
        size=math.sqrt(float(np.diag(gram).mean())),
        log_kept=float(log_kept),
        rank=_rank(cosines),
        gradient=size_of_gradient,
        score_deviation=deviation,
        freezing=None if deviation is None else deviation / limit,
    )


def _cosines(gram: Array) -> Array:
    lengths = np.sqrt(np.clip(np.diag(gram), 1e-300, None))
    cosines: Array = gram / np.outer(lengths, lengths)
    return cosines


def _rank(cosines: Array) -> float:
    squares = np.clip(np.linalg.eigvalsh(cosines), 0, None)
    return float(entropy_rank(torch.from_numpy(np.sqrt(squares))))


# --- remedies --------------------------------------------------------------------------------


def _changes(plan: Blueprint) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield changes to try, the slightest first."""
    narrower = 1 / math.sqrt(2 * plan.layers)
    yield (
        f"start maps that write to the stream at {plan.init * narrower:.2g} (1/√(2L) of the rest)",
        {"output_init": plan.init * narrower},
    )
    if not plan.qk_norm:
        yield "normalise queries and keys", {"qk_norm": True}
    for factor in (0.5, 0.25, 2.0):
        init = plan.init * factor
        yield f"start weights at {init:.2g}", {"init": init, "output_init": None}
    if plan.norm != "peri":
        scale = plan.residual_scale * narrower
        yield f"scale branches by {scale:.2g}", {"residual_scale": scale}
    for norm in ("pre", "peri"):
        if norm != plan.norm:
            yield f"{norm}-norm in place of {plan.norm}-norm", {"norm": norm}


def _remedies(plan: Blueprint, seed: int) -> Iterator[Remedy]:
    for change, fields in _changes(plan):
        changed = replace(plan, **fields)
        depths = list(depths_of(changed, seed))
        last, first = depths[-1], depths[0]
        verdict = verdict_of(readings_of(changed, depths), learnt().thresholds)
        if last.cosine <= COLLAPSED and verdict is TrainingVerdict.TRAINS:
            yield Remedy(
                change=change, cosine=last.cosine, gradient=first.gradient, verdict=verdict
            )
