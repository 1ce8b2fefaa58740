"""DistilBERT."""

from dataclasses import replace

from orbitlens.families import bert
from orbitlens.families.architecture import Position
from orbitlens.families.family import Family, Hooks
from orbitlens.families.feed import ABSOLUTE_ENCODER

DISTILBERT = Family(
    model_type="distilbert",
    classes=("DistilBert",),
    stacks=(
        replace(
            bert.LAYOUT,
            causal=False,
            prefixes=("distilbert.", ""),
            layer="transformer.layer.{layer}",
            qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
            o="attention.out_lin",
            position=lambda c: (
                Position.SINUSOIDAL if c.flag("sinusoidal_pos_embds") else Position.LEARNED
            ),
            flags=(),
        ),
    ),
    feed=ABSOLUTE_ENCODER,
    hooks=Hooks(post_norms=("sa_layer_norm", "output_layer_norm")),
)
