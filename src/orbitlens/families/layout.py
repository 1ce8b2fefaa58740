"""Layout: where one stack of a family keeps its attention weights, and how it uses them.

Enters: nothing (plain data, filled by one file a family). Leaves: what `checkpoint/build.py` turns
into a `Stack`. An entry that depends on the config is a function of its `Settings`; one that also
depends on the layer takes the layer's number as well.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from orbitlens.families.architecture import (
    LatentSpec,
    NormKind,
    Pairing,
    Position,
    QKNormScope,
    RotarySpec,
)
from orbitlens.families.settings import Settings

T = TypeVar("T")
PerConfig: TypeAlias = T | Callable[[Settings], T]
PerLayer: TypeAlias = T | Callable[[Settings, int], T]


def inverse_root_width(settings: Settings, layer: int) -> float:
    """Return 1/sqrt(d_head), the usual scale of query-key products."""
    d_head = settings.optional_size("d_head") or settings.size("d_model") // settings.size(
        "n_heads"
    )
    return float(d_head) ** -0.5


def no_window(settings: Settings, layer: int) -> int | None:
    """Return None: every token sees as far back as the mask allows."""
    return None


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one stack of a family keeps its weights and how it uses them; defaults are Llama's."""

    stack: str = "decoder"
    causal: PerConfig[bool] = True
    prefixes: tuple[str, ...] = ("model.", "")  # a base model saved alone has no prefix
    layer: PerLayer[str] = "layers.{layer}"
    qkv: PerConfig[tuple[str, ...]] = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
    o: PerConfig[str] = "self_attn.o_proj"
    fused_order: PerConfig[str | None] = None  # "blocks": q | k | v; "groups": queries, key, value
    transposed: bool = False
    norm: PerConfig[str | None] = "input_layernorm"  # None: tokens enter attention as they are
    norm_kind: PerConfig[NormKind] = NormKind.RMS
    norm_weightless: PerConfig[bool] = False
    norm_gain_offset: float = 0.0
    norm_epsilon: PerConfig[float] = 1e-6  # where the config gives none
    output_norm: PerConfig[str | None] = None
    post_norm: PerConfig[bool] = True  # of stacks with neither of these: norms are on the stream
    qk_norm: PerConfig[tuple[str, str] | None] = None
    qk_norm_kind: NormKind = NormKind.RMS
    qk_norm_scope: QKNormScope = QKNormScope.HEAD
    clip: PerConfig[float | None] = None
    softcap: PerConfig[float | None] = None
    parallel: PerConfig[bool] = False
    position: PerConfig[Position] = Position.ROTARY
    positions: str | None = None  # the table of absolute positions, outside the layers
    position_offset: int = 0
    relative_bias: str | None = None  # T5's table of biases
    pairing: PerConfig[Pairing] = Pairing.HALVES
    rotary_base: PerConfig[float] = 10000.0
    rotary_share: PerConfig[float] = 1.0
    rotary_layer_type: PerLayer[str | None] = None
    is_turned: PerLayer[bool] = True  # of a rotary encoding: whether it acts in a layer
    alibi_scale: PerConfig[float] = 1.0
    window: PerLayer[int | None] = no_window
    scale: PerLayer[float] = inverse_root_width
    n_layers: PerConfig[int] = lambda c: c.size("n_layers")
    attention_layers: PerConfig[tuple[int, ...] | None] = None  # their numbers; None: all of them
    n_heads: PerConfig[int] = lambda c: c.size("n_heads")
    n_kv_heads: PerConfig[int] = lambda c: c.optional_size("n_kv_heads") or c.size("n_heads")
    d_head: PerConfig[int | None] = lambda c: c.optional_size("d_head")
    latent: PerConfig[LatentSpec | None] = None  # in place of `qkv`
    recipe: PerConfig[str | None] = None  # how maps are computed, where the file has no weights
    recipe_extra: PerConfig[str | None] = None  # a third tensor they are computed from
    refusal: PerConfig[str | None] = None  # why the heads have no maps that could be read
    fading: PerConfig[float | None] = None  # no softmax, and what a score keeps from token to token
    flags: PerConfig[tuple[str, ...]] = ()


# --- entries that several families share ------------------------------------------------------


def unit_scale(settings: Settings, layer: int) -> float:
    """Return 1: query-key products are used as they are."""
    return 1.0


def window_everywhere(settings: Settings, layer: int) -> int | None:
    """Return the config's sliding window, which all layers share."""
    return settings.optional_size("sliding_window")


def window_by_layer_type(every: int) -> Callable[[Settings, int], int | None]:
    """Return a window rule for models that mix sliding and full layers, `every`-th one full."""

    def window(settings: Settings, layer: int) -> int | None:
        sliding = layer_type(every)(settings, layer) == "sliding_attention"
        return settings.optional_size("sliding_window") if sliding else None

    return window


def layer_type(every: int) -> Callable[[Settings, int], str]:
    """Return a rule that names the type of a layer: the config's, or `every`-th one full."""

    def type_of(settings: Settings, layer: int) -> str:
        given = settings.name_at("layer_types", layer)
        if given is not None:
            return given
        pattern = settings.size("sliding_window_pattern", every)
        return "sliding_attention" if (layer + 1) % pattern else "full_attention"

    return type_of


def resolve(entry: PerConfig[T], settings: Settings) -> T:
    """Return an entry for one config."""
    return entry(settings) if callable(entry) else entry


def resolve_layer(entry: PerLayer[T], settings: Settings, layer: int) -> T:
    """Return an entry for one config and layer."""
    return entry(settings, layer) if callable(entry) else entry


def rotary_of(layout: Layout, settings: Settings, layer: int, d_head: int) -> RotarySpec:
    """Return the rotary encoding of one layer."""
    share = resolve(layout.rotary_share, settings)
    default = resolve(layout.rotary_base, settings)
    kind = resolve_layer(layout.rotary_layer_type, settings, layer)
    if kind == "sliding_attention":  # Gemma 3 has a second base for its sliding layers
        base = settings.real("rope_local_base_freq", 10000.0)
    else:
        base = settings.real("rope_theta", settings.real("rotary_emb_base", default))
    latent = resolve(layout.latent, settings)
    spec = settings.rotary(
        d_head=d_head if latent is None else latent.d_rotary,
        pairing=resolve(layout.pairing, settings),
        layer_type=kind,
        base=base,
        share=share,
    )
    return replace(spec, d_head=d_head)
