"""Whisper: an encoder of sound and a decoder of text, with counts of heads of their own."""

from dataclasses import replace
from typing import Any

from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family
from orbitlens.families.feed import ABSOLUTE_DECODER, Kind, with_obstacle
from orbitlens.families.layout import Layout


def _silence(config: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the sound that the decoder is given where none is."""
    import torch

    n_frames = 2 * int(config.max_source_positions)
    return {"input_features": torch.zeros(1, int(config.num_mel_bins), n_frames)}


ENCODER = Layout(
    stack="encoder",
    causal=False,
    layer="encoder.layers.{layer}",
    o="self_attn.out_proj",
    norm="self_attn_layer_norm",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-5,
    position=Position.SINUSOIDAL,
    positions="encoder.embed_positions.weight",
    n_layers=lambda c: c.size("encoder_layers"),
    n_heads=lambda c: c.size("encoder_attention_heads"),
    n_kv_heads=lambda c: c.size("encoder_attention_heads"),
    scale=lambda c, layer: (c.size("d_model") // c.size("encoder_attention_heads")) ** -0.5,
)
DECODER = replace(
    ENCODER,
    stack="decoder",
    causal=True,
    layer="decoder.layers.{layer}",
    position=Position.LEARNED,
    positions="decoder.embed_positions.weight",
    n_layers=lambda c: c.size("decoder_layers"),
    n_heads=lambda c: c.size("decoder_attention_heads"),
    n_kv_heads=lambda c: c.size("decoder_attention_heads"),
    scale=lambda c, layer: (c.size("d_model") // c.size("decoder_attention_heads")) ** -0.5,
)
FEED = replace(
    ABSOLUTE_DECODER,
    kind=Kind.SEQ2SEQ_DECODER,
    ids="decoder_position_ids",
    mask="decoder_attention_mask",
    companion=_silence,
)
WHISPER = Family(
    model_type="whisper",
    classes=("Whisper",),
    stacks=(ENCODER, DECODER),
    feed=FEED,
    other_feeds={
        "encoder": with_obstacle(
            replace(FEED, kind=Kind.SEQ2SEQ_ENCODER),
            "a convolution over neighbouring frames makes its tokens, and it sees order itself",
        )
    },
)
