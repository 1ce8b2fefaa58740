"""OLMo (a norm without weights, clipping) and OLMo 2 (norms on queries, keys and the output)."""

from typing import Any

from orbitlens.families.architecture import NormKind, Pairing, QKNormScope
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout


def _olmo_gguf_config(meta: Metadata) -> dict[str, Any]:
    return {"clip_qkv": meta.real("attention.clamp_kqv") or None}


def _olmo2_gguf_config(meta: Metadata) -> dict[str, Any]:
    if meta.whole("attention.sliding_window"):
        raise meta.uncovered("OLMo 3 (it has a sliding window)")
    return {}


OLMO = Family(
    model_type="olmo",
    classes=("Olmo",),
    stacks=(
        Layout(
            norm_kind=NormKind.LAYER,
            norm_weightless=True,
            norm_epsilon=1e-5,
            clip=lambda c: c.optional_positive("clip_qkv"),
        ),
    ),
    feed=ROTARY_DECODER,
    gguf={
        "olmo": Storage(pairing=Pairing.NEIGHBOURS, layer_norm=True, config=_olmo_gguf_config),
    },
)
OLMO2 = Family(
    model_type="olmo2",
    classes=("Olmo2",),
    stacks=(
        Layout(
            norm=None,
            output_norm="post_attention_layernorm",
            qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
            qk_norm_scope=QKNormScope.ALL,
        ),
    ),
    feed=ROTARY_DECODER,
    gguf={"olmo2": Storage(config=_olmo2_gguf_config)},
)
