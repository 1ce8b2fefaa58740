"""A config of transformers or of the lab, as a blueprint: how its weights start is known here.

Enters: the settings of a config.json, or of a run. Leaves: a `Blueprint`. Families differ in where
their norms are, in their activation, and in how narrow the maps start that write to the stream.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from orbitlens.errors import InputError, UnknownFamilyError
from orbitlens.families.settings import Settings
from orbitlens.forecasting.blueprint import Blueprint

Fields = dict[str, Any]


def _gpt2(settings: Settings) -> Fields:
    init = settings.real("initializer_range", 0.02)
    narrower = init / math.sqrt(2 * settings.size("n_layers"))
    return {"output_init": narrower, "inner": settings.get("n_inner"), "position": "learned"}


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
    names = ("norm", "mask", "position", "activation", "rotary_base", "qk_norm")
    found = {name: settings.get(name) for name in names if settings.get(name) is not None}
    if settings.get("refinement", "none") not in {"none", "penalty", "reinjection"}:
        raise InputError(
            f"{settings.path}: refinement {settings.get('refinement')!r} changes how maps start; "
            "the forecast is of plain attention."
        )
    inner = settings.get("intermediate_size") or settings.get("inner")
    return found | {"inner": 0 if settings.get("mlp") is False else inner or None}


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
    if model_type not in PLANS:
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


def _epsilon_key(config: Mapping[str, Any]) -> str:
    keys = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon")
    return next((key for key in keys if config.get(key) is not None), keys[0])
