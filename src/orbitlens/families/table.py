"""FAMILIES: where each family of models keeps its attention weights. A table, not branches.

Enters: a config and the names of the tensors in a file. Leaves: an `Architecture`. A reader for a
new family is one row of `FAMILIES`; `docs/add-a-family.md` walks through one.

A cell that depends on the config is a function of the `Settings`; one that also depends on the
layer takes the layer's number as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from orbitlens.families import orbit
from orbitlens.families.architecture import NormKind, Pairing, Position, QKNormScope, RotarySpec
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
class Row:
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
    pairing: Pairing = Pairing.HALVES
    rotary_base: PerConfig[float] = 10000.0
    rotary_share: PerConfig[float] = 1.0
    rotary_layer_type: PerLayer[str | None] = None
    alibi_scale: PerConfig[float] = 1.0
    window: PerLayer[int | None] = no_window
    scale: PerLayer[float] = inverse_root_width
    n_layers: PerConfig[int] = lambda c: c.size("n_layers")
    n_heads: PerConfig[int] = lambda c: c.size("n_heads")
    n_kv_heads: PerConfig[int] = lambda c: c.optional_size("n_kv_heads") or c.size("n_heads")
    d_head: PerConfig[int | None] = lambda c: c.optional_size("d_head")
    recipe: PerConfig[str | None] = None  # how maps are computed, where the file has no weights
    refusal: PerConfig[str | None] = None  # why the heads have no maps that could be read
    fading: PerConfig[float | None] = None  # no softmax, and what a score keeps from token to token
    flags: PerConfig[tuple[str, ...]] = ()


# --- cells that several rows share -----------------------------------------------------------


def _every_layer_window(settings: Settings, layer: int) -> int | None:
    return settings.optional_size("sliding_window")


def _window_by_layer_type(every: int) -> Callable[[Settings, int], int | None]:
    """Return a window rule for models that mix sliding and full layers, `every`-th one full."""

    def window(settings: Settings, layer: int) -> int | None:
        sliding = _layer_type(every)(settings, layer) == "sliding_attention"
        return settings.optional_size("sliding_window") if sliding else None

    return window


def _layer_type(every: int) -> Callable[[Settings, int], str]:
    def layer_type(settings: Settings, layer: int) -> str:
        given = settings.name_at("layer_types", layer)
        if given is not None:
            return given
        pattern = settings.size("sliding_window_pattern", every)
        return "sliding_attention" if (layer + 1) % pattern else "full_attention"

    return layer_type


def _qwen_window(settings: Settings, layer: int) -> int | None:
    if not settings.flag("use_sliding_window"):
        return None
    kind = settings.name_at("layer_types", layer)
    first = settings.real("max_window_layers", 28.0)
    sliding = kind == "sliding_attention" if kind is not None else layer >= first
    return settings.optional_size("sliding_window") if sliding else None


def _gpt_neo_window(settings: Settings, layer: int) -> int | None:
    kind = settings.name_at("attention_layers", layer) or _gpt_neo_kind(settings, layer)
    return settings.size("window_size", 256) if kind == "local" else None


def _gpt_neo_kind(settings: Settings, layer: int) -> str:
    """Look a layer up in patterns such as [[["global", "local"], 12]], which are never unrolled."""
    given = settings.get("attention_types", [[["global", "local"], layer + 1]])
    try:
        for pattern, repeats in given:
            if layer < len(pattern) * repeats:
                return str(pattern[layer % len(pattern)])
            layer -= len(pattern) * repeats
    except (TypeError, ValueError):
        pass
    raise settings.wrong("attention_types", given, "pairs of names and repeats, for every layer")


def _gpt2_scale(settings: Settings, layer: int) -> float:
    scale = (
        inverse_root_width(settings, layer) if settings.flag("scale_attn_weights", True) else 1.0
    )
    return scale / (layer + 1) if settings.flag("scale_attn_by_inverse_layer_idx") else scale


def _gemma_scale(settings: Settings, layer: int) -> float:
    return float(settings.size("query_pre_attn_scalar", 256)) ** -0.5


def _mpt_scale(settings: Settings, layer: int) -> float:
    given = settings.optional_real("attn_config.softmax_scale")
    return given if given is not None else inverse_root_width(settings, layer)


def _mpt_clip(settings: Settings) -> float | None:
    key = "attn_config.clip_qkv"
    return settings.optional_positive(key) if settings.get(key) != 0 else None  # 0: no clipping


def _unit_scale(settings: Settings, layer: int) -> float:
    return 1.0


def _deberta_scale(settings: Settings, layer: int) -> float:
    terms = 1 + sum(name in _deberta_terms(settings) for name in ("c2p", "p2c"))
    return inverse_root_width(settings, layer) / float(terms) ** 0.5


def _deberta_terms(settings: Settings) -> list[str]:
    value = settings.get("pos_att_type", [])
    names = value.split("|") if isinstance(value, str) else settings.names("pos_att_type") or []
    return [name for name in ("c2p", "p2c", "p2p") if name in names]


def _deberta_position(settings: Settings) -> Position:
    relative = settings.flag("relative_attention")
    absolute = settings.flag("position_biased_input", True)
    return Position.DISENTANGLED if relative else (Position.LEARNED if absolute else Position.NONE)


def _deberta_flags(settings: Settings) -> tuple[str, ...]:
    if not settings.flag("relative_attention"):
        return ()
    terms = ", ".join(_deberta_terms(settings)) or "none"
    return (
        f"DeBERTa's position terms of the score ({terms}) are not part of a head's score map: "
        "rates, certificates and recomputed attention hold the content-to-content part alone",
    )


def _falcon_norm(settings: Settings) -> str:
    two = (
        settings.flag("new_decoder_architecture")
        and settings.size("num_ln_in_parallel_attn", 2) == 2
    )
    return "ln_attn" if two else "input_layernorm"


def _falcon_kv_heads(settings: Settings) -> int:
    if settings.flag("new_decoder_architecture"):
        return settings.optional_size("n_kv_heads") or settings.size("n_heads")
    return 1 if settings.flag("multi_query", True) else settings.size("n_heads")


def _falcon_order(settings: Settings) -> str:
    one_key = settings.flag("multi_query", True) and not settings.flag("new_decoder_architecture")
    return "blocks" if one_key else "groups"


def _albert_layer(settings: Settings, layer: int) -> str:
    inner = settings.size("inner_group_num", 1)
    per_group = settings.size("n_layers") / settings.size("num_hidden_groups", 1)
    group = int((layer // inner) / per_group)
    return f"encoder.albert_layer_groups.{group}.albert_layers.{layer % inner}"


def _bert_position_kind(settings: Settings) -> str:
    kind = settings.get("position_embedding_type", "absolute")
    if not isinstance(kind, str):
        raise settings.wrong("position_embedding_type", kind, "a string, such as 'absolute'")
    return kind


def _bert_position(settings: Settings) -> Position:
    kind = _bert_position_kind(settings)
    return Position.LEARNED if kind == "absolute" else Position.DISENTANGLED


def _bert_flags(settings: Settings) -> tuple[str, ...]:
    kind = _bert_position_kind(settings)
    if kind == "absolute":
        return ()
    return (f"position_embedding_type {kind!r}: its terms of the score are not read",)


# --- the table -------------------------------------------------------------------------------

LLAMA = Row()
NEOX = Row(
    prefixes=("gpt_neox.", ""),
    qkv=("attention.query_key_value",),
    o="attention.dense",
    fused_order="groups",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-5,
    rotary_base=10000.0,
    rotary_share=0.25,
    parallel=lambda c: c.flag("use_parallel_residual", True),
)
GPT2 = Row(
    prefixes=("transformer.", ""),
    layer="h.{layer}",
    qkv=("attn.c_attn",),
    o="attn.c_proj",
    fused_order="blocks",
    transposed=True,
    norm="ln_1",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-5,
    position=Position.LEARNED,
    positions="wpe.weight",
    scale=_gpt2_scale,
)
BERT = Row(
    stack="encoder",
    causal=lambda c: c.flag("is_decoder"),
    prefixes=("bert.", ""),
    layer="encoder.layer.{layer}",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    o="attention.output.dense",
    norm=None,
    position=_bert_position,
    positions="embeddings.position_embeddings.weight",
    flags=_bert_flags,
)
BLOOM = Row(
    prefixes=("transformer.", ""),
    layer="h.{layer}",
    qkv=("self_attention.query_key_value",),
    o="self_attention.dense",
    fused_order="groups",
    norm_kind=NormKind.LAYER,
    norm_epsilon=1e-5,
    position=Position.ALIBI,
)
VIT = Row(
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
T5_ENCODER = Row(
    stack="encoder",
    causal=False,
    prefixes=("", "transformer."),
    layer="encoder.block.{layer}.layer.0",
    qkv=("SelfAttention.q", "SelfAttention.k", "SelfAttention.v"),
    o="SelfAttention.o",
    norm="layer_norm",
    position=Position.T5_BIAS,
    relative_bias="encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
    scale=_unit_scale,
    d_head=lambda c: c.size("d_kv", 64),
)
WHISPER_ENCODER = Row(
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
GEMMA = replace(LLAMA, norm_gain_offset=1.0, d_head=lambda c: c.size("d_head", 256))
GEMMA2 = replace(
    GEMMA,
    output_norm="post_attention_layernorm",
    softcap=lambda c: c.optional_positive("attn_logit_softcapping"),
    scale=_gemma_scale,
    window=_window_by_layer_type(2),
)
GEMMA3 = replace(
    GEMMA2,
    prefixes=("model.", "", "language_model.model.", "model.language_model."),
    causal=lambda c: not c.flag("use_bidirectional_attention"),
    qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
    window=_window_by_layer_type(6),
    rotary_base=1e6,
    rotary_layer_type=_layer_type(6),
)

ORBIT = Row(  # the lab's own models, whose every mechanism is a switch of the config
    causal=orbit.causal,
    layer=lambda c, layer: "layers.0" if c.flag("shared_layers") else "layers.{layer}",
    qkv=lambda c: ("self_attn.score_map" if orbit.definite(c) else "self_attn.qkv_proj",),
    o=lambda c: "self_attn.value_map" if orbit.definite(c) else "self_attn.o_proj",
    fused_order="blocks",
    norm=lambda c: "attn_norm" if orbit.norm(c) in {"pre", "peri"} else None,
    norm_kind=orbit.norm_kind,
    norm_weightless=orbit.definite,
    norm_epsilon=lambda c: c.real("layer_norm_eps", 1e-5, least=0.0),
    output_norm=lambda c: "attn_out_norm" if orbit.norm(c) == "peri" else None,
    position=orbit.position,
    positions="embed_positions.weight",
    relative_bias="relative_bias.weight",
    rotary_base=lambda c: c.real("rotary_base", 10000.0),
    rotary_share=lambda c: c.real("rotary_fraction", 1.0),
    scale=orbit.scale,
    d_head=orbit.d_head,
    recipe=orbit.recipe,
    refusal=orbit.refusal,
    fading=orbit.fading,
    flags=orbit.flags,
)

FAMILIES: dict[str, tuple[Row, ...]] = {
    "gpt2": (GPT2,),
    "gpt_neo": (
        replace(
            GPT2,
            qkv=("attn.attention.q_proj", "attn.attention.k_proj", "attn.attention.v_proj"),
            o="attn.attention.out_proj",
            fused_order=None,
            transposed=False,
            window=_gpt_neo_window,
            scale=_unit_scale,
        ),
    ),
    "gptj": (
        replace(
            GPT2,
            qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            o="attn.out_proj",
            fused_order=None,
            transposed=False,
            position=Position.ROTARY,
            positions=None,
            pairing=Pairing.NEIGHBOURS,
            parallel=True,
            scale=inverse_root_width,
        ),
    ),
    "gpt_neox": (NEOX,),
    "opt": (
        Row(
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
    "bloom": (BLOOM,),
    "falcon": (
        replace(
            BLOOM,
            fused_order=_falcon_order,
            norm=_falcon_norm,
            n_kv_heads=_falcon_kv_heads,
            position=lambda c: Position.ALIBI if c.flag("alibi") else Position.ROTARY,
            # Falcon adds ALiBi before the scores are divided by sqrt(d_head).
            alibi_scale=lambda c: inverse_root_width(c, 0),
            parallel=lambda c: c.flag("new_decoder_architecture") or c.flag("parallel_attn", True),
        ),
    ),
    "mpt": (
        replace(
            BLOOM,
            layer="blocks.{layer}",
            qkv=("attn.Wqkv",),
            o="attn.out_proj",
            norm="norm_1",
            fused_order="blocks",
            clip=_mpt_clip,
            scale=_mpt_scale,
        ),
    ),
    "phi": (
        replace(
            LLAMA,
            o="self_attn.dense",
            norm_kind=NormKind.LAYER,
            norm_epsilon=1e-5,
            qk_norm=lambda c: (
                ("self_attn.q_layernorm", "self_attn.k_layernorm")
                if c.flag("qk_layernorm")
                else None
            ),
            qk_norm_kind=NormKind.LAYER,
            rotary_share=0.5,
            parallel=True,
        ),
    ),
    "phi3": (
        replace(
            LLAMA, qkv=("self_attn.qkv_proj",), fused_order="blocks", window=_every_layer_window
        ),
    ),
    "llama": (LLAMA,),
    "mistral": (replace(LLAMA, window=_every_layer_window),),
    "mixtral": (replace(LLAMA, window=_every_layer_window, rotary_base=1e6),),
    "qwen2": (replace(LLAMA, window=_qwen_window),),
    "qwen3": (
        replace(LLAMA, window=_qwen_window, qk_norm=("self_attn.q_norm", "self_attn.k_norm")),
    ),
    "gemma": (GEMMA,),
    "gemma2": (GEMMA2,),
    "gemma3_text": (GEMMA3,),
    "gemma3": (GEMMA3,),
    "olmo": (
        replace(
            LLAMA,
            norm_kind=NormKind.LAYER,
            norm_weightless=True,
            norm_epsilon=1e-5,
            clip=lambda c: c.optional_positive("clip_qkv"),
        ),
    ),
    "olmo2": (
        replace(
            LLAMA,
            norm=None,
            output_norm="post_attention_layernorm",
            qk_norm=("self_attn.q_norm", "self_attn.k_norm"),
            qk_norm_scope=QKNormScope.ALL,
        ),
    ),
    "stablelm": (
        replace(
            LLAMA,
            norm_kind=NormKind.LAYER,
            norm_epsilon=1e-5,
            qk_norm=lambda c: (
                ("self_attn.q_layernorm.norms.{head}", "self_attn.k_layernorm.norms.{head}")
                if c.flag("qk_layernorm")
                else None
            ),
            qk_norm_kind=NormKind.LAYER,
            rotary_share=0.25,
            parallel=lambda c: c.flag("use_parallel_residual"),
        ),
    ),
    "bert": (BERT,),
    "roberta": (replace(BERT, prefixes=("roberta.", ""), position_offset=2),),
    "xlm-roberta": (replace(BERT, prefixes=("roberta.", ""), position_offset=2),),
    "electra": (replace(BERT, prefixes=("electra.", "")),),
    "distilbert": (
        replace(
            BERT,
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
    "albert": (
        replace(
            BERT,
            causal=False,
            prefixes=("albert.", ""),
            layer=_albert_layer,
            qkv=("attention.query", "attention.key", "attention.value"),
            o="attention.dense",
            n_layers=lambda c: c.size("n_layers") * c.size("inner_group_num", 1),
        ),
    ),
    "deberta-v2": (
        replace(
            BERT,
            causal=False,
            prefixes=("deberta.", ""),
            qkv=(
                "attention.self.query_proj",
                "attention.self.key_proj",
                "attention.self.value_proj",
            ),
            position=_deberta_position,
            scale=_deberta_scale,
            flags=_deberta_flags,
        ),
    ),
    "orbit": (ORBIT,),
    "vit": (VIT,),
    "deit": (replace(VIT, prefixes=("deit.", "")),),
    "t5": (
        T5_ENCODER,
        replace(
            T5_ENCODER,
            stack="decoder",
            causal=True,
            layer="decoder.block.{layer}.layer.0",
            relative_bias="decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            n_layers=lambda c: c.optional_size("num_decoder_layers") or c.size("n_layers"),
        ),
    ),
    "whisper": (
        WHISPER_ENCODER,
        replace(
            WHISPER_ENCODER,
            stack="decoder",
            causal=True,
            layer="decoder.layers.{layer}",
            position=Position.LEARNED,
            positions="decoder.embed_positions.weight",
            n_layers=lambda c: c.size("decoder_layers"),
            n_heads=lambda c: c.size("decoder_attention_heads"),
            n_kv_heads=lambda c: c.size("decoder_attention_heads"),
            scale=lambda c, layer: (c.size("d_model") // c.size("decoder_attention_heads")) ** -0.5,
        ),
    ),
}


def row_in_gguf(row: Row, overrides: Mapping[str, Any]) -> Row:
    """Return `row` with GGUF's uniform tensor names and storage, from `gguf_config`'s overrides."""
    names = {**overrides["names"], **overrides.get("stack_names", {}).get(row.stack, {})}
    fused = overrides.get("fused_order")
    return replace(
        row,
        prefixes=("",),
        causal=overrides.get("causal", row.causal),
        layer=names["layer"],
        qkv=(names["qkv"],) if fused else (names["q"], names["k"], names["v"]),
        o=names["o"],
        fused_order=fused,
        transposed=False,
        norm=names["norm"] if row.norm is not None else None,
        output_norm=names["output_norm"] if row.output_norm else None,
        qk_norm=_renamed(row.qk_norm, (names["q_norm"], names["k_norm"])),
        norm_gain_offset=overrides.get("norm_gain_offset", 0.0),
        positions=names.get("positions") if row.positions else None,
        position_offset=overrides.get("position_offset", row.position_offset),
        relative_bias=names.get("relative_bias") if row.relative_bias else None,
        pairing=Pairing(overrides.get("pairing", row.pairing)),
    )


def _renamed(
    cell: PerConfig[tuple[str, str] | None], names: tuple[str, str]
) -> PerConfig[tuple[str, str] | None]:
    """Return `names` wherever the cell gives any; some models of a family have no such norm."""
    if callable(cell):
        return lambda settings: names if cell(settings) else None
    return names if cell else None


def rotary_of(row: Row, settings: Settings, layer: int, d_head: int) -> RotarySpec:
    """Return the rotary encoding of one layer of a row."""
    kind, share, base = row.rotary_layer_type, row.rotary_share, row.rotary_base
    share = share(settings) if callable(share) else share
    default = base(settings) if callable(base) else base
    layer_type = kind(settings, layer) if callable(kind) else kind
    if layer_type == "sliding_attention":  # Gemma 3 has a second base for its sliding layers
        base = settings.real("rope_local_base_freq", 10000.0)
    else:
        base = settings.real("rope_theta", settings.real("rotary_emb_base", default))
    return settings.rotary(
        d_head=d_head,
        pairing=row.pairing,
        layer_type=layer_type,
        base=base,
        share=share,
    )
