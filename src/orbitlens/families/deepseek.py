"""DeepSeek V2 and V3: latent attention (MLA). Keys and values come through one normalised latent.

A head's score has a part without positions, of the latents, and a rotated part, whose key all heads
share (arXiv 2405.04434). V3 may say in its config how rotated coordinates are paired.
"""

import math
from dataclasses import replace

from orbitlens.families.architecture import LatentSpec, Pairing
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER
from orbitlens.families.layout import Layout
from orbitlens.families.settings import Settings

NORM_EPSILON = 1e-6  # of the latents' norms, whatever the config says of the others


def _latent(settings: Settings) -> LatentSpec:
    q_rank = settings.optional_size("q_lora_rank")
    names = {"q": "q_proj"}
    if q_rank is not None:
        names = {"q_down": "q_a_proj", "q_down_norm": "q_a_layernorm", "q_up": "q_b_proj"}
    names |= {
        "kv_down": "kv_a_proj_with_mqa",
        "kv_down_norm": "kv_a_layernorm",
        "kv_up": "kv_b_proj",
    }
    return LatentSpec(
        q_rank=q_rank,
        kv_rank=settings.size("kv_lora_rank"),
        d_plain=settings.size("qk_nope_head_dim"),
        d_rotary=settings.size("qk_rope_head_dim"),
        d_value=settings.size("v_head_dim"),
        epsilon=NORM_EPSILON,
        names={role: f"self_attn.{name}" for role, name in names.items()},
    )


def _scale(settings: Settings, layer: int) -> float:
    """Return 1/sqrt(width), times the square of YaRN's magnitude where all of a head has it."""
    latent = _latent(settings)
    scale = float(latent.d_plain + latent.d_rotary) ** -0.5
    rotary = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    if not isinstance(rotary, dict) or rotary.get("rope_type", rotary.get("type")) != "yarn":
        return scale
    view = Settings({"yarn": rotary}, settings.path)
    weight, factor = view.real("yarn.mscale_all_dim", 0.0), view.real("yarn.factor", 1.0, least=0.0)
    magnitude = 0.1 * weight * math.log(factor) + 1.0 if weight and factor > 1 else 1.0
    return scale * magnitude**2


def _flags(settings: Settings) -> tuple[str, ...]:
    return (
        "queries, keys and values come through normalised latents: maps are taken at the latents' "
        "typical length, exact in direction and approximate in size",
    )


LAYOUT = Layout(
    latent=_latent,
    n_kv_heads=lambda c: c.size("n_heads"),
    pairing=Pairing.NEIGHBOURS,
    scale=_scale,
    flags=_flags,
)
DEEPSEEK_V2 = Family(
    model_type="deepseek_v2",
    classes=("DeepseekV2",),
    stacks=(LAYOUT,),
    feed=ROTARY_DECODER,
)
DEEPSEEK_V3 = Family(
    model_type="deepseek_v3",
    classes=("DeepseekV3",),
    stacks=(
        replace(
            LAYOUT,
            pairing=lambda c: (
                Pairing.NEIGHBOURS if c.flag("rope_interleave", True) else Pairing.HALVES
            ),
        ),
    ),
    feed=ROTARY_DECODER,
)
