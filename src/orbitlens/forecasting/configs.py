"""A config of transformers or of the lab, as a blueprint: how its weights start is known here.

Enters: the settings of a config.json, or of a run. Leaves: a `Blueprint`. Families differ in where
their norms are, in their activation, and in how narrow the maps start that write to the stream.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from orbitlens.errors import InputError, UnknownFamilyError
from orbitlens.families.settings import Settings
from orbitlens.forecasting.blueprint import SWITCHES, Blueprint
from orbitlens.orbit.switches import DEFINITE

Fields = dict[str, Any]
PLAIN = ("none", "penalty", "anti", "guard")  # refinements under which maps start as plain ones


def _gpt2(settings: Settings) -> Fields:
    init = settings.real("initializer_range", 0.02)
    narrower = init / math.sqrt(2 * settings.size("n_layers"))
    return {
        "output_init": narrower,
        "inner": settings.optional_size("n_inner"),
        "position": "learned",
    }


def _llama(settings: Settings) -> Fields:
    return {
        "activation": "swiglu",
        "position": "rotary",
        "inner": settings.size("intermediate_size"),
    }


def _qwen3(settings: Settings) -> Fields:
    return _llama(settings) | {"qk_norm": True}


def _bert(settings: Settings) -> Fields:
    inner = settings.size("intermediate_size", 3072)
    first = {"shares_embedding": True, "embedding_norm": True}
    return {"norm": "post", "mask": "full", "position": "learned", "inner": inner} | first


def _opt(settings: Settings) -> Fields:
    norm = "pre" if settings.flag("do_layer_norm_before", True) else "post"
    inner = settings.size("ffn_dim", 4 * settings.size("d_model"))
    return {"norm": norm, "activation": "relu", "position": "learned", "inner": inner}


def _vit(settings: Settings) -> Fields:
    return {"mask": "full", "position": "learned", "inner": settings.size("intermediate_size")}


def _orbit(settings: Settings) -> Fields:
    refinement = settings.get("refinement", "none")
    if refinement not in (*PLAIN, *DEFINITE):
        raise InputError(
            f"{settings.path}: refinement {refinement!r} changes how maps start, and is not part "
            f"of the forecast. Known: {', '.join((*PLAIN, *DEFINITE))}."
        )
    found: Fields = {"refinement": "none" if refinement in PLAIN else refinement}
    for name in ("norm", "mask", "position", "activation"):
        value = settings.get(name, getattr(Blueprint, name))
        if value not in SWITCHES[name]:
            raise settings.wrong(name, value, f"one of: {', '.join(SWITCHES[name])}")
        found[name] = value
    key = "inner" if settings.get("intermediate_size") is None else "intermediate_size"
    inner = None if settings.get(key) == 0 else settings.optional_size(key)  # 0: four widths
    return found | {
        "inner": inner if settings.flag("mlp", True) else 0,
        "qk_norm": settings.flag("qk_norm"),
        "rotary_base": settings.real("rotary_base", 10000.0),
    }


PLANS: dict[str, Callable[[Settings], Fields]] = {
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _llama,
    "qwen2": _llama,
    "qwen3": _qwen3,
    "bert": _bert,
    "roberta": _bert,
    "xlm-roberta": _bert,
    "opt": _opt,
    "vit": _vit,
    "deit": _vit,
    "orbit": _orbit,
}


def blueprint_of(config: Mapping[str, Any], path: str = "the config") -> Blueprint:
    """Return the blueprint of a config.

    Raises:
        UnknownFamilyError: it is not known how its family starts.
        CheckpointError: a size is missing or wrong.
        InputError: the sizes do not fit each other.
    """
    settings = Settings(config, path)
    model_type = config.get("model_type")
    if model_type is None and "task" in config:
        return _run(config, settings)
    if not isinstance(model_type, str) or model_type not in PLANS:
        known = ", ".join(sorted(PLANS))
        raise UnknownFamilyError(
            f"{path}: model_type {model_type!r}; it is not known how such a model starts. Known: "
            f"{known}. Or give sizes and switches: layers, width, heads, norm, init."
        )
    fields = PLANS[model_type](settings)
    most = settings.optional_size("max_positions")
    return Blueprint(
        layers=settings.size("n_layers"),
        width=settings.size("d_model"),
        heads=settings.size("n_heads"),
        init=settings.real("initializer_range", 0.02),
        vocabulary=settings.size("vocab_size", 1000),
        context=min(64, most or 64),
        epsilon=settings.real(_epsilon_key(config), 1e-5, least=0.0),
        **fields,
    )


def _run(config: Mapping[str, Any], settings: Settings) -> Blueprint:
    """Return the blueprint of a run of the lab, from the config that its folder holds."""
    kept, shared = config.get("residual", "all"), config.get("shared_layers", False)
    if kept != "all" or shared or config.get("attention", "softmax") != "softmax":
        raise InputError(
            f"{settings.path}: the forecast is of softmax attention with all residual sums and "
            "weights of its own in every layer; this run has others."
        )
    return Blueprint(
        layers=settings.size("layers"),
        width=settings.size("width"),
        heads=settings.size("heads"),
        init=settings.real("init", 0.1),
        context=settings.optional_size("options.context")
        or settings.optional_size("context")
        or 64,
        **_orbit(settings),
    )


def _epsilon_key(config: Mapping[str, Any]) -> str:
    keys = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    return next((key for key in keys if config.get(key) is not None), keys[0])
