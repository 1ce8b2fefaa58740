"""T5: an encoder and a decoder, each with one table of position biases for all its layers."""

from dataclasses import replace
from typing import Any

from orbitlens.families.architecture import Position
from orbitlens.families.family import Family, Hooks
from orbitlens.families.feed import Encoding, Feed, Kind
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout, unit_scale


def _gguf_config(meta: Metadata) -> dict[str, Any]:
    if meta.has("enc.blk.1.attn_rel_b.weight"):
        raise meta.uncovered("UMT5 (every layer has its own position biases)")
    return {
        "d_kv": meta.d_head(),
        "num_decoder_layers": meta.whole("decoder_block_count"),
        "relative_attention_num_buckets": meta.whole("attention.relative_buckets_count"),
    }


def _gguf_names(short: str) -> dict[str, str]:
    return {
        "layer": short + ".blk.{layer}",
        "relative_bias": short + ".blk.0.attn_rel_b.weight",
        "o": "attn_o",
    }


ENCODER = Layout(
    stack="encoder",
    causal=False,
    prefixes=("", "transformer."),
    layer="encoder.block.{layer}.layer.0",
    qkv=("SelfAttention.q", "SelfAttention.k", "SelfAttention.v"),
    o="SelfAttention.o",
    norm="layer_norm",
    position=Position.T5_BIAS,
    relative_bias="encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    scale=unit_scale,
    d_head=lambda c: c.size("d_kv", 64),
)
DECODER = replace(
    ENCODER,
    stack="decoder",
    causal=True,
    layer="decoder.block.{layer}.layer.0",
    relative_bias="decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    n_layers=lambda c: c.optional_size("num_decoder_layers") or c.size("n_layers"),
)
FEED = Feed(kind=Kind.SEQ2SEQ_ENCODER, encoding=Encoding.T5_BIAS, ids=None, mask=None, causal=False)
STORAGE = Storage(
    pairing=None,
    config=_gguf_config,
    stack_names={"encoder": _gguf_names("enc"), "decoder": _gguf_names("dec")},
)
T5 = Family(
    model_type="t5",
    classes=("T5",),
    stacks=(ENCODER, DECODER),
    feed=FEED,
    other_feeds={
        "decoder": replace(
            FEED, kind=Kind.SEQ2SEQ_DECODER, mask="decoder_attention_mask", causal=True
        )
    },
    hooks=Hooks(first_number=True),  # parts of a layer are numbered too
    gguf={"t5": STORAGE, "t5encoder": STORAGE},
)
