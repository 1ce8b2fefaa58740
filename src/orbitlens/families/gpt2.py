"""GPT-2."""

from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family
from orbitlens.families.feed import ABSOLUTE_DECODER
from orbitlens.families.gguf import Storage
from orbitlens.families.layout import Layout, inverse_root_width
from orbitlens.families.settings import Settings


def _scale(settings: Settings, layer: int) -> float:
    scale = (
        inverse_root_width(settings, layer) if settings.flag("scale_attn_weights", True) else 1.0
    )
    return scale / (layer + 1) if settings.flag("scale_attn_by_inverse_layer_idx") else scale


LAYOUT = Layout(
    prefixes=("transformer.", ""),
    layer="h.{layer}",
    qkv=("attn.c_attn",),
    o="attn.c_proj",
    fused_order="blocks",
    transposed=True,
    norm="ln_1",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-5,
    position=Position.LEARNED,
    positions="wpe.weight",
    scale=_scale,
)
GPT2 = Family(
    model_type="gpt2",
    classes=("GPT2",),
    stacks=(LAYOUT,),
    feed=ABSOLUTE_DECODER,
    gguf={"gpt2": Storage(pairing=None, layer_norm=True)},
)
