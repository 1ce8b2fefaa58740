"""GPT-Neo: global and local layers take turns, and modules keep their masks as buffers."""

from dataclasses import replace

from orbitlens.families import gpt2
from orbitlens.families.family import Family
from orbitlens.families.feed import ABSOLUTE_DECODER
from orbitlens.families.layout import unit_scale
from orbitlens.families.settings import Settings


def _window(settings: Settings, layer: int) -> int | None:
    kind = settings.name_at("attention_layers", layer) or _layer_kind(settings, layer)
    return settings.size("window_size", 256) if kind == "local" else None


def _layer_kind(settings: Settings, layer: int) -> str:
    """Look a layer up in patterns such as [[["global", "local"], 12]], which are never unrolled."""
    given = settings.get("attention_types", [[["global", "local"], layer + 1]])
    wrong = settings.wrong("attention_types", given, "pairs of names and repeats, for every layer")
    try:
        for pattern, repeats in given:
            if layer < len(pattern) * repeats:
                return str(pattern[layer % len(pattern)])
            layer -= len(pattern) * repeats
    except (TypeError, ValueError) as error:
        raise wrong from error
    raise wrong


GPT_NEO = Family(
    model_type="gpt_neo",
    classes=("GPTNeo",),
    stacks=(
        replace(
            gpt2.LAYOUT,
            qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
            o="attn.attention.out_proj",
            fused_order=None,
            transposed=False,
            window=_window,
            scale=unit_scale,
        ),
    ),
    feed=replace(ABSOLUTE_DECODER, mask_buffers=("GPTNeoSelfAttention", "bias")),
)
