"""StableLM: a quarter of each head turned; optionally one norm a head on queries and keys."""

from typing import Any

from orbitlens.families.architecture import NormKind
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout
from orbitlens.families.settings import Settings


def _qk_norm(settings: Settings) -> tuple[str, str] | None:
    names = ("self_attn.q_layernorm.norms.{head}", "self_attn.k_layernorm.norms.{head}")
    return names if settings.flag("qk_layernorm") else None


def _gguf_config(meta: Metadata) -> dict[str, Any]:
    return {
        "use_parallel_residual": not meta.has("blk.0.ffn_norm.weight"),
        "qk_layernorm": meta.has("blk.0.attn_q_norm.weight"),
    }


STABLELM = Family(
    model_type="stablelm",
    classes=("StableLm", "StableLM"),
    stacks=(
        Layout(
            norm_kind=NormKind.LAYER,
            norm_epsilon=1e-5,
            qk_norm=_qk_norm,
            qk_norm_kind=NormKind.LAYER,
            rotary_share=0.25,
            parallel=lambda c: c.flag("use_parallel_residual"),
        ),
    ),
    feed=ROTARY_DECODER,
    gguf={"stablelm": Storage(layer_norm=True, config=_gguf_config)},
)
