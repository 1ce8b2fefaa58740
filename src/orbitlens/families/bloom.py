"""BLOOM: ALiBi, fused weights by group; masks and biases reach only its attention modules."""

from dataclasses import replace
from typing import Any

from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family
from orbitlens.families.feed import ALIBI_DECODER, Arguments, additive
from orbitlens.families.gguf import Storage
from orbitlens.families.layout import Layout


def _steer(args: tuple[Any, ...], named: dict[str, Any], mask: Any, encoding: bool) -> Arguments:  # noqa: ANN401
    alibi = named["alibi"]
    named["attention_mask"] = additive(mask, args[0].dtype)
    named["alibi"] = alibi if encoding else alibi.new_zeros(alibi.shape)
    return args, named


LAYOUT = Layout(
    prefixes=("transformer.", ""),
    layer="h.{layer}",
    qkv=("self_attention.query_key_value",),
    o="self_attention.dense",
    fused_order="groups",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-5,
    position=Position.ALIBI,
)
BLOOM = Family(
    model_type="bloom",
    classes=("Bloom",),
    stacks=(LAYOUT,),
    feed=replace(ALIBI_DECODER, attention="BloomAttention", steer=_steer),
    gguf={"bloom": Storage(pairing=None, layer_norm=True)},
)
