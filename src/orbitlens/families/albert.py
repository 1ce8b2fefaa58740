"""ALBERT: layers share the weights of a few groups."""

from dataclasses import replace

from orbitlens.families import bert
from orbitlens.families.family import Family, Hooks
from orbitlens.families.feed import ABSOLUTE_ENCODER
from orbitlens.families.settings import Settings


def _layer(settings: Settings, layer: int) -> str:
    inner = settings.size("inner_group_num", 1)
    per_group = settings.size("n_layers") / settings.size("num_hidden_groups", 1)
    group = int((layer // inner) / per_group)
    return f"encoder.albert_layer_groups.{group}.albert_layers.{layer % inner}"


ALBERT = Family(
    model_type="albert",
    classes=("Albert",),
    stacks=(
        replace(
            bert.LAYOUT,
            causal=False,
            prefixes=("albert.", ""),
            layer=_layer,
            qkv=("attention.query", "attention.key", "attention.value"),
            o="attention.dense",
            n_layers=lambda c: c.size("n_layers") * c.size("inner_group_num", 1),
        ),
    ),
    feed=ABSOLUTE_ENCODER,
    hooks=Hooks(post_norms=("attention.LayerNorm", "full_layer_layer_norm")),
)
