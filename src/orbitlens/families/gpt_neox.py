"""GPT-NeoX and Pythia: fused weights by group, a part of each head turned."""

from typing import Any

from orbitlens.families.architecture import NormKind
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout


def _gguf_config(meta: Metadata) -> dict[str, Any]:
    parallel = meta.get("use_parallel_residual", bool, "true or false")
    return {"use_parallel_residual": parallel is not False}


GPT_NEOX = Family(
    model_type="gpt_neox",
    classes=("GPTNeoX",),
    stacks=(
        Layout(
            prefixes=("gpt_neox.", ""),
            qkv=("attention.query_key_value",),
            o="attention.dense",
            fused_order="groups",
            norm_kind=NormKind.LAYER,
            norm_epsilon=1e-5,
            rotary_base=10000.0,
            rotary_share=0.25,
            parallel=lambda c: c.flag("use_parallel_residual", True),
        ),
    ),
    feed=ROTARY_DECODER,
    gguf={"gptneox": Storage(layer_norm=True, config=_gguf_config)},
)
