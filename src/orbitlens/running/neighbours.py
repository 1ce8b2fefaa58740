"""Models that other libraries have wrapped: PEFT, nnsight and TransformerLens.

Enters: what `load` was given. Leaves: the torch module inside, its tokenizer, and what its tensors
stand for; or a refusal that says what to give instead. None of these libraries is imported: their
objects are known by their classes and attributes.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from orbitlens.checkpoint.live import WeightView
from orbitlens.errors import InputError

BASE, SAVED = ".base_layer.", ".modules_to_save."  # how PEFT names what it has put layers around


@dataclass(frozen=True, kw_only=True)
class Wrapped:
    """What is inside a wrapper."""

    module: Any  # a torch module, or what was given
    tokenizer: Any | None = None
    view: WeightView | None = None  # where layers inside were replaced


def inside(model: object) -> Wrapped:
    """Return the module inside an object of another library; other objects as they are.

    Raises:
        InputError: what it computes is not what plain attention weights say.
    """
    packages = {kind.__module__.partition(".")[0] for kind in type(model).__mro__}
    if "nnsight" in packages:
        return _of_nnsight(model)
    if "transformer_lens" in packages:
        raise _of_transformer_lens(model)
    if isinstance(model, nn.Module):
        return _of_peft(model)
    return Wrapped(module=model)


# --- nnsight ---------------------------------------------------------------------------------


def _of_nnsight(model: Any) -> Wrapped:  # noqa: ANN401 - a model of nnsight
    module = getattr(model, "_module", None)
    kind = type(model).__name__
    if not isinstance(module, nn.Module):
        raise InputError(
            f"a {kind} of nnsight without a torch module was given. Give the model that it wraps."
        )
    if any(parameter.is_meta for parameter in module.parameters()):
        raise InputError(
            f"the weights of this {kind} of nnsight are not loaded yet. Make it with dispatch=True."
        )
    found = _of_peft(module)
    return Wrapped(
        module=found.module, tokenizer=getattr(model, "tokenizer", None), view=found.view
    )


# --- TransformerLens -------------------------------------------------------------------------


def _of_transformer_lens(model: Any) -> InputError:  # noqa: ANN401 - a model of TransformerLens
    """Return the refusal: weights are folded and centred, or sit in layers of its own.

    Folded weights have lost the gain of the norm in front, centred ones their mean; a scan of them
    is not one of the model that was loaded.
    """
    settings = getattr(model, "cfg", None)
    name = next(
        (
            str(getattr(settings, key))
            for key in ("tokenizer_name", "model_name")
            if getattr(settings, key, None)
        ),
        "the model's name",
    )
    return InputError(
        f"a {type(model).__name__} of TransformerLens was given, which may have folded norms into "
        "its weights and centred them. Give the transformers model that it was made from: "
        f"load({name!r}), or its folder."
    )


# --- PEFT ------------------------------------------------------------------------------------


def _of_peft(module: nn.Module) -> Wrapped:
    """Return the base model of PEFT adapters, with the deltas of the active ones added."""
    is_wrapper = hasattr(module, "peft_config") and hasattr(module, "get_base_model")
    base: nn.Module = module.get_base_model() if is_wrapper else module  # type: ignore[operator]
    parts = dict(base.named_modules())
    adapted = {name: part for name, part in parts.items() if hasattr(part, "base_layer")}
    saved = {name: part for name, part in parts.items() if hasattr(part, "original_module")}
    if is_wrapper:
        _refuse_prompts(module)
    if not adapted and not saved:
        return Wrapped(module=base)
    for name, layer in adapted.items():
        _check_layer(name, layer)
    for name, layer in saved.items():
        _chosen_copy(name, layer)

    def plain_name(stored: str) -> str | None:
        return _plain_name(stored, adapted, saved)

    def value(name: str, weight: Tensor) -> Tensor:
        owner, _, kind = name.rpartition(".")
        return weight + _delta(adapted[owner]) if kind == "weight" and owner in adapted else weight

    return Wrapped(module=base, view=WeightView(plain_name=plain_name, value=value))


def _refuse_prompts(module: Any) -> None:  # noqa: ANN401 - a model of PEFT
    for name in module.active_adapters:
        if getattr(module.peft_config[name], "is_prompt_learning", False):
            raise InputError(
                f"the adapter {name!r} puts trained tokens in front of a text and leaves the "
                "weights alone. Give the base model: model.get_base_model()."
            )


def _check_layer(name: str, layer: Any) -> None:  # noqa: ANN401 - a layer of PEFT
    """Refuse adapters that are not a low-rank matrix added to a weight."""
    is_lora = hasattr(layer, "lora_A") and hasattr(layer, "get_delta_weight")
    is_plain = is_lora and all(_adds_matrix_alone(layer, each) for each in _active(layer))
    has_weight = isinstance(getattr(layer.base_layer, "weight", None), Tensor)
    is_undone = layer.merged and layer.disable_adapters  # the next run takes the deltas out again
    if not is_plain or not has_weight or is_undone or type(layer).__name__ == "ParamWrapper":
        raise InputError(
            f"{name}: the adapter of this layer ({type(layer).__name__}) is not a low-rank matrix "
            "added to a weight: DoRA and others change more. Merge it first: "
            "model.merge_and_unload()."
        )


def _adds_matrix_alone(layer: Any, adapter: str) -> bool:  # noqa: ANN401 - a layer of PEFT
    is_variant = adapter in getattr(layer, "lora_variant", {})
    is_dora = getattr(layer, "use_dora", {}).get(adapter, False)
    has_bias = adapter in layer.lora_B and layer.lora_B[adapter].bias is not None
    return not (is_variant or is_dora or has_bias)


def _active(layer: Any) -> list[str]:  # noqa: ANN401 - a layer of PEFT
    """Return the adapters whose deltas a layer adds as it runs."""
    if layer.disable_adapters or layer.merged:  # merged ones are in the weight already
        return []
    known = {*getattr(layer, "lora_A", {}), *getattr(layer, "lora_embedding_A", {})}
    return [name for name in layer.active_adapters if name in known]


def _delta(layer: Any) -> Tensor | float:  # noqa: ANN401 - a layer of PEFT
    deltas: list[Tensor] = [layer.get_delta_weight(name).detach() for name in _active(layer)]
    return sum(deltas[1:], deltas[0]) if deltas else 0.0


def _chosen_copy(name: str, layer: Any) -> str:  # noqa: ANN401 - a layer of PEFT
    """Return where the copy of a layer that runs is kept: trained whole, or the original."""
    active = [each for each in layer.active_adapters if each in layer.modules_to_save]
    if layer.disable_adapters or not active:
        return f"{name}.original_module."
    if len(active) > 1:
        raise InputError(f"{name}: several adapters have a copy of this layer; make one active.")
    return f"{name}{SAVED}{active[0]}."


def _plain_name(
    stored: str, adapted: Mapping[str, nn.Module], saved: Mapping[str, nn.Module]
) -> str | None:
    """Return the name a tensor has without adapters; None for the adapters' own tensors."""
    for name, layer in saved.items():
        if stored.startswith(f"{name}."):
            place = _chosen_copy(name, layer)
            return f"{name}.{stored.removeprefix(place)}" if stored.startswith(place) else None
    owner, _, kind = stored.partition(BASE)
    if kind and owner in adapted:
        return f"{owner}.{kind}"
    parts = stored.split(".")
    owners = (".".join(parts[:k]) for k in range(len(parts)))
    return None if any(owner in adapted for owner in owners) else stored
