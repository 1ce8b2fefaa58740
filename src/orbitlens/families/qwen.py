"""Qwen2 and Qwen3: some layers may have a sliding window; Qwen3 normalises queries and keys."""

from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_BY_LAYER_TYPE, with_window
from orbitlens.families.gguf import Storage
from orbitlens.families.layout import Layout
from orbitlens.families.settings import Settings


def _window(settings: Settings, layer: int) -> int | None:
    if not settings.flag("use_sliding_window"):
        return None
    kind = settings.name_at("layer_types", layer)
    first = settings.real("max_window_layers", 28.0)
    sliding = kind == "sliding_attention" if kind is not None else layer >= first
    return settings.optional_size("sliding_window") if sliding else None


QWEN2 = Family(
    model_type="qwen2",
    classes=("Qwen2",),
    stacks=(Layout(window=_window),),
    feed=ROTARY_BY_LAYER_TYPE,
    feed_by_config=with_window,
    gguf={"qwen2": Storage()},
)
QWEN3 = Family(
    model_type="qwen3",
    classes=("Qwen3",),
    stacks=(Layout(window=_window, qk_norm=("self_attn.q_norm", "self_attn.k_norm")),),
    feed=ROTARY_BY_LAYER_TYPE,
    feed_by_config=with_window,
    gguf={"qwen3": Storage()},
)
