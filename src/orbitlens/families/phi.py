"""Phi (1, 1.5, 2) and Phi-3."""

from dataclasses import replace
from typing import Any

from orbitlens.families.architecture import NormKind
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER, with_window
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout, window_everywhere
from orbitlens.families.settings import Settings


def _qk_norm(settings: Settings) -> tuple[str, str] | None:
    names = ("self_attn.q_layernorm", "self_attn.k_layernorm")
    return names if settings.flag("qk_layernorm") else None


def _phi3_gguf_config(meta: Metadata) -> dict[str, Any]:
    return {"sliding_window": meta.whole("attention.sliding_window") or None}


PHI = Family(
    model_type="phi",
    classes=("Phi",),
    stacks=(
        Layout(
            o="self_attn.dense",
            norm_kind=NormKind.LAYER,
            norm_epsilon=1e-5,
            qk_norm=_qk_norm,
            qk_norm_kind=NormKind.LAYER,
            rotary_share=0.5,
            parallel=True,
        ),
    ),
    feed=ROTARY_DECODER,
    gguf={"phi2": Storage(layer_norm=True)},
)
PHI3 = Family(
    model_type="phi3",
    classes=("Phi3",),
    stacks=(
        replace(
            Layout(),
            qkv=("self_attn.qkv_proj",),
            fused_order="blocks",
            window=window_everywhere,
        ),
    ),
    feed=ROTARY_DECODER,
    feed_by_config=with_window,
    gguf={"phi3": Storage(config=_phi3_gguf_config)},
)
