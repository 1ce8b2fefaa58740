"""OPT: pre-norm or post-norm by its config; its table of positions starts two rows late."""

from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family, Hooks
from orbitlens.families.feed import ABSOLUTE_DECODER
from orbitlens.families.layout import Layout

OPT = Family(
    model_type="opt",
    classes=("OPT",),
    stacks=(
        Layout(
            prefixes=("model.decoder.", "decoder.", ""),
            o="self_attn.out_proj",
            norm=lambda c: "self_attn_layer_norm" if c.flag("do_layer_norm_before", True) else None,
            norm_kind=NormKind.LAYER,
            norm_epsilon=1e-5,
            position=Position.LEARNED,
            positions="embed_positions.weight",
            position_offset=2,
        ),
    ),
    feed=ABSOLUTE_DECODER,
    hooks=Hooks(post_norms=("self_attn_layer_norm", "final_layer_norm")),
)
