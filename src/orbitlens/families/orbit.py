"""Orbit, the lab's own models: what each switch of their config means for a reader.

A refined model (theory section 6) is read as the maps it uses, by a recipe of `heads/refined.py`,
or refused with the reason; never as the raw parameters behind them.
"""

from dataclasses import replace
from typing import Any

from orbitlens.families.architecture import NormKind, Position
from orbitlens.families.family import Family, Hooks, RotationSwitches
from orbitlens.families.feed import ROTARY_DECODER, Encoding, Feed, Kind, with_obstacle
from orbitlens.families.layout import Layout
from orbitlens.families.settings import Settings

POSITIONS = {
    "none": Position.NONE,
    "learned": Position.LEARNED,
    "sinusoidal": Position.SINUSOIDAL,
    "rotary": Position.ROTARY,
    "alibi": Position.ALIBI,
    "t5": Position.T5_BIAS,
}
NORMS = ("pre", "post", "peri", "none")
PLAIN = ("none", "guard", "guard-data", "anti", "penalty", "reinjection")  # weights are maps
DEFINITE = ("definite-positive", "definite-half", "definite-negative")
RELEASED = ("released-positive", "released-half", "released-negative")
THEOREM = ("theorem-positive", "theorem-half", "theorem-negative")
NO_MAPS = {  # why a head has no one score map and value map
    "diagonal": "refinement 'diagonal' adds a diagonal form of the tokens to every head's scores, "
    "so a head's maps are not the product of its weights",
    **dict.fromkeys(
        ("centred", "centred-fixed"),
        "refinement 'centred' takes the mean of the values away from what a head finds, so its "
        "attention weights do not sum to 1",
    ),
    "averaging": "refinement 'averaging' gives every value the same weight: its heads have no "
    "score map",
}
AXES = ("columns-rows", "rows-columns", "columns", "rows")
REFINEMENTS = (*PLAIN, *DEFINITE, *RELEASED, *THEOREM, *NO_MAPS, "aligned", "rotary-values")


def _word(settings: Settings, key: str, default: str, known: tuple[str, ...]) -> str:
    value = settings.get(key, default)
    if not isinstance(value, str) or value not in known:
        raise settings.wrong(key, value, f"one of {', '.join(known)}")
    return value


def causal(settings: Settings) -> bool:
    """Return whether a token sees earlier ones only."""
    return _word(settings, "mask", "causal", ("causal", "full")) == "causal"


def norm(settings: Settings) -> str:
    """Return where the norms are."""
    return _word(settings, "norm", "pre", NORMS)


def qk_norm(settings: Settings) -> tuple[str, str] | None:
    """Return the norms of queries and keys."""
    return ("self_attn.q_norm", "self_attn.k_norm") if settings.flag("qk_norm") else None


def norm_kind(settings: Settings) -> NormKind:
    """Return the kind of norm."""
    return NormKind(_word(settings, "norm_kind", "layer", ("layer", "rms")))


def position(settings: Settings) -> Position:
    """Return the position encoding."""
    return POSITIONS[_word(settings, "position", "learned", tuple(POSITIONS))]


def refinement(settings: Settings) -> str:
    """Return the refinement."""
    return _word(settings, "refinement", "none", REFINEMENTS)


def is_turned(settings: Settings, layer: int) -> bool:
    """Return whether the rotary encoding, where there is one, acts in a layer."""
    chosen = settings.get("rotary_layers", "all")
    return layer in chosen if isinstance(chosen, list) else True


def recipe(settings: Settings) -> str | None:
    """Return how maps are computed from parameters; None where the weights are the maps."""
    name = refinement(settings)
    return None if name in PLAIN or refusal(settings) is not None else name


def refusal(settings: Settings) -> str | None:
    """Return why there is no one map a head, or None."""
    name = refinement(settings)
    if name in NO_MAPS:
        return NO_MAPS[name]
    if name == "rotary-values" or (name == "aligned" and position(settings) is Position.ROTARY):
        return (
            f"refinement {name!r} with a rotary encoding makes a head's value map depend on the "
            "offset between two tokens, so there is no one map to read"
        )
    return None


def d_head(settings: Settings) -> int | None:
    """Return the width of a head as it is read: that of its widest factor."""
    name = recipe(settings)
    if name is None or name in RELEASED:
        return None
    width, n_heads = settings.size("d_model"), settings.size("n_heads")
    if name in THEOREM:
        return theorem_rank(width, n_heads)
    return width if name in DEFINITE else 2 * (width // n_heads)


def scale(settings: Settings, layer: int) -> float:
    """Return what scores are multiplied by."""
    width, name = settings.size("d_model"), refinement(settings)
    if name not in (*DEFINITE, *THEOREM):
        width //= settings.size("n_heads")
    elif name in THEOREM:
        width = theorem_rank(width, settings.size("n_heads"))
    return float(width) ** -0.5


def theorem_rank(d_model: int, n_heads: int) -> int:
    """Return the rank of theorem heads: the largest with H (d r + 2 r^2) <= 4 d^2 parameters.

    >>> theorem_rank(64, 4), theorem_rank(96, 8), theorem_rank(32, 1)
    (32, 29, 31)
    """
    rank = int(d_model * ((1 + 32 / n_heads) ** 0.5 - 1) / 4 + 1e-9)
    return max(1, min(d_model - 1, rank))


def recipe_extra(settings: Settings) -> str | None:
    """Return the third tensor that maps are computed from, where there is one."""
    name = recipe(settings)
    if name in THEOREM:
        return "self_attn.score_form"
    return "self_attn.alignment" if name == "aligned" else None


def qkv(settings: Settings) -> tuple[str]:
    """Return the tensor that queries, keys and values are made of."""
    name = refinement(settings)
    if name in THEOREM:
        return ("self_attn.reading_map",)
    return ("self_attn.score_map" if name in DEFINITE else "self_attn.qkv_proj",)


def holds_signs(settings: Settings) -> bool:
    """Return whether heads are definite maps, whose norm in front has no gain."""
    return refinement(settings) in (*DEFINITE, *THEOREM)


def flags(settings: Settings) -> tuple[str, ...]:
    """Return what a reading leaves out."""
    notes = []
    if settings.get("residual", "all") != "all":
        notes.append(
            "some residual sums are missing: what attention or a head does to the stream is "
            "measured on x + attention, which such a layer does not form"
        )
    if settings.get("image_size") is not None and causal(settings):
        notes.append("the mask is causal among patches; the class token sees all of them")
    notes += _separable(settings)
    if fading(settings) is not None:
        notes.append(
            "attention has no softmax (plastic): maps are read as they are; rates and certificates "
            "are those that softmax attention with the same maps would have"
        )
    return tuple(notes)


def fading(settings: Settings) -> float | None:
    """Return what plastic attention keeps of a score a token on; None where there is a softmax."""
    if settings.get("attention", "softmax") != "plastic":
        return None
    return settings.real("decay", 1.0, least=0.0)


def _separable(settings: Settings) -> list[str]:
    """Say which layers attend within columns and which within rows."""
    if settings.get("attention", "softmax") != "separable":
        return []
    turn = _word(settings, "axes", AXES[0], AXES).split("-")
    n_layers = settings.size("n_layers")
    lines = [turn[layer % len(turn)] for layer in range(n_layers)]
    parts = [
        f"layers {', '.join(str(k) for k in range(n_layers) if lines[k] == axis)} within {axis}"
        for axis in dict.fromkeys(lines)
    ]
    return [
        f"attention is separable ({' and '.join(parts)}): rates and certificates speak of the "
        "tokens of one such line and its class token"
    ]


def _feed(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    encodings = {
        "none": Encoding.NONE,
        "rotary": Encoding.ROTARY,
        "alibi": Encoding.ALIBI,
        "t5": Encoding.T5_BIAS,
    }
    feed = replace(
        feed,
        encoding=encodings.get(config.position, Encoding.ABSOLUTE),
        causal=config.mask == "causal",
        shift_matters=config.position in {"learned", "sinusoidal"},
    )
    if config.image_size is None:
        return feed if feed.causal else replace(feed, kind=Kind.ENCODER)
    # The class token stands at 0, patches from 1 on.
    feed = replace(feed, kind=Kind.IMAGE, n_special=1, first_id=1, shift_matters=None)
    if getattr(config, "attention", "softmax") != "separable":
        return feed
    return with_obstacle(
        feed, "separable attention tells columns and rows apart without any encoding or mask"
    )


ORBIT = Family(
    model_type="orbit",
    classes=("Orbit",),
    is_own=True,
    stacks=(
        Layout(
            causal=causal,
            layer=lambda c, layer: "layers.0" if c.flag("shared_layers") else "layers.{layer}",
            qkv=qkv,
            o=lambda c: "self_attn.value_map" if holds_signs(c) else "self_attn.o_proj",
            fused_order="blocks",
            norm=lambda c: "attn_norm" if norm(c) in {"pre", "peri"} else None,
            norm_kind=norm_kind,
            norm_weightless=holds_signs,
            norm_epsilon=lambda c: c.real("layer_norm_eps", 1e-5, least=0.0),
            output_norm=lambda c: "attn_out_norm" if norm(c) == "peri" else None,
            post_norm=lambda c: norm(c) == "post",
            qk_norm=qk_norm,
            position=position,
            positions="embed_positions.weight",
            relative_bias="relative_bias.weight",
            rotary_base=lambda c: c.real("rotary_base", 10000.0),
            is_turned=is_turned,
            rotary_share=lambda c: c.real("rotary_fraction", 1.0),
            scale=scale,
            d_head=d_head,
            recipe=recipe,
            recipe_extra=recipe_extra,
            refusal=refusal,
            fading=fading,
            flags=flags,
        ),
    ),
    # It takes ids and a 4-D mask whatever its switches are.
    feed=replace(ROTARY_DECODER, ids_follow_mask=True),
    feed_by_config=_feed,
    hooks=Hooks(post_norms=("attn_post_norm", "mlp_post_norm")),
    rotation=RotationSwitches(
        layers="rotary_layers", base="rotary_base", kept="model.surroundings"
    ),
)
