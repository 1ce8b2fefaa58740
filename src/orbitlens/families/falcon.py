"""Falcon: rotary or ALiBi, one key for all heads or one a group, by its config."""

import math
from dataclasses import replace
from typing import Any

from orbitlens.families import bloom
from orbitlens.families.architecture import Position
from orbitlens.families.family import Family
from orbitlens.families.feed import (
    ALIBI_DECODER,
    ROTARY_DECODER,
    Arguments,
    Feed,
    lowest,
    with_obstacle,
)
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import inverse_root_width
from orbitlens.families.settings import Settings


def _norm(settings: Settings) -> str:
    two = (
        settings.flag("new_decoder_architecture")
        and settings.size("num_ln_in_parallel_attn", 2) == 2
    )
    return "ln_attn" if two else "input_layernorm"


def _kv_heads(settings: Settings) -> int:
    if settings.flag("new_decoder_architecture"):
        return settings.optional_size("n_kv_heads") or settings.size("n_heads")
    return 1 if settings.flag("multi_query", True) else settings.size("n_heads")


def _fused_order(settings: Settings) -> str:
    one_key = settings.flag("multi_query", True) and not settings.flag("new_decoder_architecture")
    return "blocks" if one_key else "groups"


def _steer(args: tuple[Any, ...], named: dict[str, Any], mask: Any, encoding: bool) -> Arguments:  # noqa: ANN401
    alibi = named["alibi"]  # (batch, head, 1, tokens), not yet divided by sqrt(d_head)
    d_head = args[0].shape[-1] // alibi.shape[1]
    bias = alibi / math.sqrt(d_head) if encoding else alibi.new_zeros(alibi.shape)
    named["attention_mask"] = bias.masked_fill(~mask, lowest(args[0].dtype))
    return args, named


def _feed(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    if not config.alibi:
        return feed
    feed = replace(ALIBI_DECODER, attention="FalconAttention", steer=_steer)
    if config._attn_implementation == "sdpa":
        return feed
    return with_obstacle(
        feed, "eager Falcon adds ALiBi twice; load the model with attn_implementation='sdpa'"
    )


def _gguf_config(meta: Metadata) -> dict[str, Any]:
    # In Hugging Face's spelling only this form of Falcon gives its count of keys as a number.
    return {"new_decoder_architecture": True, "alibi": False}


def _gguf_names(meta: Metadata) -> dict[str, str]:
    two_norms = meta.has("blk.0.attn_norm_2.weight")  # Falcon 40B: the first is the MLP's
    return {"norm": "attn_norm_2"} if two_norms else {}


FALCON = Family(
    model_type="falcon",
    classes=("Falcon",),
    stacks=(
        replace(
            bloom.LAYOUT,
            fused_order=_fused_order,
            norm=_norm,
            n_kv_heads=_kv_heads,
            position=lambda c: Position.ALIBI if c.flag("alibi") else Position.ROTARY,
            # Falcon adds ALiBi before the scores are divided by sqrt(d_head).
            alibi_scale=lambda c: inverse_root_width(c, 0),
            parallel=lambda c: c.flag("new_decoder_architecture") or c.flag("parallel_attn", True),
        ),
    ),
    feed=ROTARY_DECODER,
    feed_by_config=_feed,
    gguf={"falcon": Storage(layer_norm=True, config=_gguf_config, names=_gguf_names)},
)
