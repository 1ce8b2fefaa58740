"""ViT and DeiT: tokens are patches of an image behind one class token, or two."""

from dataclasses import replace

from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family, Hooks
from orbitlens.families.feed import Encoding, Feed, Kind
from orbitlens.families.layout import Layout

LAYOUT = Layout(
    stack="encoder",
    causal=False,
    prefixes=("vit.", ""),
    layer="encoder.layer.{layer}",
    qkv=(
        "attention.attention.query",
        "attention.attention.key",
        "attention.attention.value",
    ),
    o="attention.output.dense",
    norm="layernorm_before",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-12,
    position=Position.LEARNED,
    positions="embeddings.position_embeddings",
)
FEED = Feed(kind=Kind.IMAGE, encoding=Encoding.ABSOLUTE, ids=None, n_special=1, causal=False)
VIT = Family(
    model_type="vit",
    classes=("ViT",),
    stacks=(LAYOUT,),
    feed=FEED,
    hooks=Hooks(
        renamed=(("encoder.layer.", "layers."), ("attention.output.dense", "attention.o_proj"))
    ),
)
DEIT = replace(
    VIT,
    model_type="deit",
    classes=("DeiT",),
    stacks=(replace(LAYOUT, prefixes=("deit.", "")),),
    feed=replace(FEED, n_special=2),
)
