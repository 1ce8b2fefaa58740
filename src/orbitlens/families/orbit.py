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
AXES = ("columns-rows", "rows-columns", "columns", "rows")
REFINEMENTS = (*PLAIN, *DEFINITE, "aligned", "diagonal", "rotary-values")


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


def definite(settings: Settings) -> bool:
    """Return whether heads are definite maps as wide as the model."""
    return refinement(settings) in DEFINITE


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
    if name == "diagonal":
        return (
            "refinement 'diagonal' adds a full diagonal to every head's score map, so a head's "
            "maps are not the product of its weights"
        )
    if name == "rotary-values" or (name == "aligned" and position(settings) is Position.ROTARY):
        return (
            f"refinement {name!r} with a rotary encoding makes a head's value map depend on the "
            "offset between two tokens, so there is no one map to read"
        )
    return None


def d_head(settings: Settings) -> int | None:
    """Return the width of a head as it is read: that of its widest factor."""
    if recipe(settings) is None:
        return None
    width = settings.size("d_model")
    return width if definite(settings) else 2 * (width // settings.size("n_heads"))


def scale(settings: Settings, layer: int) -> float:
    """Return what scores are multiplied by."""
    width = settings.size("d_model")
    return float(width if definite(settings) else width // settings.size("n_heads")) ** -0.5


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
            qkv=lambda c: ("self_attn.score_map" if definite(c) else "self_attn.qkv_proj",),
            o=lambda c: "self_attn.value_map" if definite(c) else "self_attn.o_proj",
            fused_order="blocks",
            norm=lambda c: "attn_norm" if norm(c) in {"pre", "peri"} else None,
            norm_kind=norm_kind,
            norm_weightless=definite,
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
