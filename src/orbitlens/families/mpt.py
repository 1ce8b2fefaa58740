"""MPT: ALiBi, optionally clipped queries, keys and values; masks that say what is hidden."""

from dataclasses import replace
from typing import Any

from orbitlens.families import bloom
from orbitlens.families.family import Family
from orbitlens.families.feed import ALIBI_DECODER, Arguments
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import inverse_root_width
from orbitlens.families.settings import Settings


def _scale(settings: Settings, layer: int) -> float:
    given = settings.optional_real("attn_config.softmax_scale")
    return given if given is not None else inverse_root_width(settings, layer)


def _clip(settings: Settings) -> float | None:
    key = "attn_config.clip_qkv"
    return settings.optional_positive(key) if settings.get(key) != 0 else None  # 0: no clipping


def _steer(args: tuple[Any, ...], named: dict[str, Any], mask: Any, encoding: bool) -> Arguments:  # noqa: ANN401
    bias = named["position_bias"]
    named["attention_mask"] = ~mask[None, None]
    named["position_bias"] = bias if encoding else bias.new_zeros(bias.shape)
    return args, named


def _gguf_config(meta: Metadata) -> dict[str, Any]:
    bias = meta.real("attention.max_alibi_bias")
    if not bias or meta.has("blk.0.attn_q_norm.weight"):
        raise meta.uncovered("an MPT with learned positions or normalised queries and keys")
    clip = meta.real("attention.clamp_kqv")
    return {"attn_config": {"alibi": True, "alibi_bias_max": bias, "clip_qkv": clip or None}}


MPT = Family(
    model_type="mpt",
    classes=("Mpt", "MPT"),
    stacks=(
        replace(
            bloom.LAYOUT,
            layer="blocks.{layer}",
            qkv=("attn.Wqkv",),
            o="attn.out_proj",
            norm="norm_1",
            fused_order="blocks",
            clip=_clip,
            scale=_scale,
        ),
    ),
    feed=replace(ALIBI_DECODER, attention="MptAttention", steer=_steer),
    gguf={"mpt": Storage(pairing=None, layer_norm=True, config=_gguf_config)},
)
