"""What a model's layers do to the tokens of a context: by tokens, and by the signs of its maps.

Enters: a model and its task. Leaves: numbers by layer, for a run's log and its result. The tokens
are those of the test split; the maps are read as `scan` reads them, from the model in memory.
"""

import math
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.live import checkpoint_of_module
from orbitlens.heads.layers import load_layer
from orbitlens.lab.tasks import Task
from orbitlens.theory.clouds import (
    dispersion,
    effective_rank,
    mean_cosine,
    mean_squared_distance,
)
from orbitlens.theory.maps import HeadMaps

MEASURED_CONTEXTS = 64


@torch.no_grad()
def convergence(model: Any, task: Task) -> dict[str, Any]:  # noqa: ANN401
    """Return whether the tokens of a context converge through the layers.

    Means over contexts of the test split, of the stream in front of each layer and behind the last
    (the final norm left out):

        log_distance   ln of the root mean squared distance between tokens
        dispersion     the same distance relative to the tokens' size (arXiv 2512.03058)
        cosine         mean cosine between tokens
        directions     mean cosine of what the next layer sees: C of docs/concepts.md
        rank           effective rank of these directions
    """
    available = task.n_examples("test")
    n = MEASURED_CONTEXTS if available is None else min(MEASURED_CONTEXTS, available)
    inputs = task.batch("test", 0, n, 0).inputs.to(model.device)
    config = model.config
    centred = config.norm in {"pre", "peri"} and config.norm_kind == "layer"
    depth = [
        _cloud(x.double().cpu(), centred=centred)
        for x in _stream(model, inputs, task.kind == "images")
    ]
    courses = {key: [point[key] for point in depth] for key in depth[0]}
    log_distance = courses["log_distance"]
    return {
        **courses,
        "log_distance_change": log_distance[-1] - log_distance[0],
        "cosine_last": courses["cosine"][-1],
        "dispersion_last": courses["dispersion"][-1],
    }


@torch.no_grad()
def forward_signs(model: Any) -> dict[str, list[float]] | None:  # noqa: ANN401
    """Return what the maps that heads apply to tokens are, by layer; None where there are none.

    positive     share of positive directions of sym(W V^+), over heads
    value_norm   Frobenius norm of V, mean over heads
    """
    checkpoint = checkpoint_of_module(model)
    stack = checkpoint.stack()
    if stack.refusal is not None:
        return None
    found: dict[str, list[float]] = {"positive": [], "value_norm": []}
    for layer in range(len(stack.layers)):
        maps = [HeadMaps.of(head) for head in load_layer(checkpoint, layer)]
        signs = [each.alignment_signs for each in maps]
        n_positive, n_negative = (sum(counts) for counts in zip(*signs, strict=True))
        found["positive"].append(n_positive / max(1, n_positive + n_negative))
        found["value_norm"].append(sum(each.value_norm for each in maps) / len(maps))
    return found


def watched(model: Any, task: Task) -> dict[str, Any]:  # noqa: ANN401
    """Return what is noted of a model while it is trained."""
    courses = convergence(model, task)
    noted = {name: courses[name] for name in ("directions", "rank")}
    return noted | {"signs": forward_signs(model)}


def _stream(model: Any, inputs: Tensor, is_image: bool) -> list[Tensor]:  # noqa: ANN401
    """Return the residual stream in front of each layer and behind the last."""
    last: list[Tensor] = []
    handle = model.model.norm.register_forward_pre_hook(lambda _, args: last.append(args[0]))
    is_training = model.training
    model.eval()
    name = "pixel_values" if is_image else "input_ids"
    try:
        states = model.model(**{name: inputs}, output_hidden_states=True).hidden_states
    finally:
        handle.remove()
        model.train(is_training)
    return [*states[:-1], *last]


def _cloud(states: Tensor, *, centred: bool) -> dict[str, float]:
    """Return the mean geometry of the tokens of a context, over contexts."""
    n = states.shape[0]
    distances = [mean_squared_distance(x) for x in states]
    seen = states - states.mean(dim=-1, keepdim=True) if centred else states
    units = seen / seen.norm(dim=-1, keepdim=True).clamp(min=1e-300)
    return {
        "log_distance": sum(0.5 * math.log(max(d, 1e-300)) for d in distances) / n,
        "dispersion": sum(dispersion(x) for x in states) / n,
        "cosine": sum(mean_cosine(x) for x in states) / n,
        "directions": sum(mean_cosine(x) for x in units) / n,
        "rank": sum(effective_rank(x) for x in units) / n,
    }
