"""Cells of the lab's own models in the family table: what their switches mean for a reader.

Enters: the `Settings` of a config with model_type "orbit". Leaves: what a cell of the table holds.
A refined model (theory section 6) is read as the maps it uses, by a recipe of `heads/refined.py`,
or refused with the reason; never as the raw parameters behind them.
"""

from orbitlens.families.architecture import NormKind, Position
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
    found = []
    if settings.get("residual", "all") != "all":
        found.append(
            "some residual sums are missing: what attention or a head does to the stream is said "
            "of x + attention, which such a layer does not form"
        )
    if settings.get("image_size") is not None and causal(settings):
        found.append("the mask is causal among patches; the class token sees all of them")
    found += _separable(settings)
    if fading(settings) is not None:
        found.append(
            "attention has no softmax (plastic): maps are read as they are; rates and certificates "
            "are those that softmax attention with the same maps would have"
        )
    return tuple(found)


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
    said = [
        f"layers {', '.join(str(k) for k in range(n_layers) if lines[k] == axis)} within {axis}"
        for axis in dict.fromkeys(lines)
    ]
    return [
        f"attention is separable ({' and '.join(said)}): rates and certificates speak of the "
        "tokens of one such line and its class token"
    ]
