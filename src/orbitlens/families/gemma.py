"""Gemma, Gemma 2 and Gemma 3: gains stored less 1; from Gemma 2 on, layers with a window."""

from dataclasses import replace
from typing import Any

from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_BY_LAYER_TYPE, ROTARY_DECODER, with_window
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout, layer_type, window_by_layer_type
from orbitlens.families.settings import Settings


def _scale(settings: Settings, layer: int) -> float:
    return float(settings.size("query_pre_attn_scalar", 256)) ** -0.5


def _gguf_layers(meta: Metadata, window: int | None, every: int, largest: int) -> dict[str, Any]:
    """Return what Gemma 2 and 3 share: every so many layers, one sees past the window."""
    n_layers = meta.n_layers()
    kinds = ("sliding_attention", "full_attention")
    split = meta.size("embedding_length") // meta.size("attention.head_count")
    return {
        "sliding_window": window or None,
        "layer_types": [kinds[not window or (i + 1) % every == 0] for i in range(n_layers)],
        # No key holds the scale. As in llama.cpp: the largest model alone, known by its number of
        # layers, scales by d_model / n_heads.
        "query_pre_attn_scalar": split if n_layers == largest else meta.d_head(),
    }


def _gemma2_gguf_config(meta: Metadata) -> dict[str, Any]:
    window, cap = meta.whole("attention.sliding_window"), meta.real("attn_logit_softcapping")
    layers = _gguf_layers(meta, 4096 if window is None else window, every=2, largest=46)
    return layers | {"attn_logit_softcapping": 50.0 if cap is None else cap or None}


def _gemma3_gguf_config(meta: Metadata) -> dict[str, Any]:
    layers = _gguf_layers(meta, meta.whole("attention.sliding_window"), every=6, largest=62)
    full = meta.rope_parameters()
    sliding = {
        "rope_type": "default",  # scaling is for the layers without a window alone
        "rope_theta": meta.real("rope.freq_base_swa") or 10000.0,
        "partial_rotary_factor": full["partial_rotary_factor"],
    }
    return layers | {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


LAYOUT = Layout(norm_gain_offset=1.0, d_head=lambda c: c.size("d_head", 256))
LAYOUT_2 = replace(
    LAYOUT,
    output_norm="post_attention_layernorm",
    softcap=lambda c: c.optional_positive("attn_logit_softcapping"),
    scale=_scale,
    window=window_by_layer_type(2),
)
LAYOUT_3 = replace(
    LAYOUT_2,
    prefixes=("model.", "", "language_model.model.", "model.language_model."),
    causal=lambda c: not c.flag("use_bidirectional_attention"),
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    window=window_by_layer_type(6),
    rotary_base=1e6,
    rotary_layer_type=layer_type(6),
)
GEMMA = Family(
    model_type="gemma",
    classes=("Gemma",),
    stacks=(LAYOUT,),
    feed=ROTARY_DECODER,
    gguf={"gemma": Storage()},
)
GEMMA2 = Family(
    model_type="gemma2",
    classes=("Gemma2",),
    stacks=(LAYOUT_2,),
    feed=ROTARY_BY_LAYER_TYPE,
    feed_by_config=with_window,
    gguf={"gemma2": Storage(config=_gemma2_gguf_config)},
)
GEMMA3_TEXT = Family(
    model_type="gemma3_text",
    classes=("Gemma3ForCausalLM", "Gemma3TextModel"),
    stacks=(LAYOUT_3,),
    feed=ROTARY_BY_LAYER_TYPE,
    feed_by_config=with_window,
    gguf={"gemma3": Storage(config=_gemma3_gguf_config)},
)
GEMMA3 = Family(  # the text part of a model that also sees images is scanned
    model_type="gemma3",
    classes=("Gemma3",),
    stacks=(LAYOUT_3,),
)
