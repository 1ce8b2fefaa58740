"""What an `OrbitConfig` refuses: values out of range, and switches that do not go together.

Enters: a config. Leaves: nothing, or an error with what was given, what is expected and what to
change. What one switch may be by itself is part of its declaration in `switches.py`.
"""

from typing import TYPE_CHECKING

from orbitlens.errors import InputError
from orbitlens.orbit.switches import SWITCHES, THEOREM

if TYPE_CHECKING:
    from orbitlens.orbit.config import OrbitConfig

# The encodings that a refinement is made for; with the others it has no meaning.
NEEDS_POSITION: dict[str, tuple[str, ...]] = {
    "diagonal": ("rotary",),
    "rotary-values": ("rotary",),
    "reinjection": ("learned", "sinusoidal"),
    # A rotation would turn the maps whose signs are held.
    **dict.fromkeys(THEOREM, ("learned", "sinusoidal", "none", "alibi", "t5")),
}
SIZES = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
)


def check_switches(config: "OrbitConfig") -> None:
    """Refuse unknown values, and switches that mean nothing together."""
    for name, switch in SWITCHES.items():
        switch.check(getattr(config, name))
    _check_layers(config)
    _check_attention(config)
    _check_images(config)
    needed = NEEDS_POSITION.get(config.refinement)
    if needed is not None and config.position not in needed:
        raise InputError(
            f"refinement {config.refinement!r} is made for the encoding {' or '.join(needed)}; the "
            f"position here is {config.position!r}. Choose that encoding or another refinement."
        )


def _check_images(config: "OrbitConfig") -> None:
    """Refuse switches that act on patches in a model of tokens."""
    if config.image_size is not None:
        return
    for name, switch in SWITCHES.items():
        value = getattr(config, name)
        if switch.of_images and value != switch.default:
            raise InputError(
                f"{name} {value!r} acts on the patches of an image; this is a model of tokens. "
                f"Choose a task of images, such as digits, or leave {name} at {switch.default!r}."
            )


def _check_attention(config: "OrbitConfig") -> None:
    """Refuse switches that mean nothing with the kind of attention."""
    if config.attention != "softmax" and config.refinement not in {"none", "reinjection"}:
        raise InputError(
            f"refinement {config.refinement!r} needs softmax attention; the attention here is "
            f"{config.attention!r}. Choose refinement 'none' or attention 'softmax'."
        )
    if config.qk_norm:
        _check_qk_norm(config)
    if config.attention == "plastic":
        _check_plastic(config)
    elif config.decay != 1:
        raise InputError(
            f"decay {config.decay} belongs to attention 'plastic'; the attention here is "
            f"{config.attention!r}. Leave decay at 1 or choose 'plastic'."
        )
    _check_separable(config)


def _check_qk_norm(config: "OrbitConfig") -> None:
    """Refuse layers whose scores are not those of plain queries and keys."""
    if config.attention != "softmax" or config.refinement not in {"none", "reinjection"}:
        raise InputError(
            f"qk_norm is a norm on the queries and keys of plain softmax attention; here attention "
            f"is {config.attention!r} and the refinement {config.refinement!r}. Choose attention "
            "'softmax' and refinement 'none', or leave qk_norm out."
        )


def _check_separable(config: "OrbitConfig") -> None:
    if config.attention != "separable":
        if config.axes != "columns-rows":
            raise InputError(
                f"axes {config.axes!r} belongs to attention 'separable'; the attention here is "
                f"{config.attention!r}. Leave axes out or choose 'separable'."
            )
        return
    if config.image_size is None:
        raise InputError(
            "attention 'separable' acts along the columns and rows of an image; this is a model "
            "of tokens. Choose a task of images, such as digits, or another attention."
        )
    if config.refinement == "reinjection":
        raise InputError(
            "refinement 'reinjection' adds positions before every layer, as attention 'separable' "
            "does by itself. Choose refinement 'none'."
        )


def _check_plastic(config: "OrbitConfig") -> None:
    if config.position in {"alibi", "t5"}:
        raise InputError(
            f"position {config.position!r} is added to the scores inside a softmax, which plastic "
            "attention does not have. Choose none, learned, sinusoidal or rotary."
        )
    if config.decay != 1 and (config.mask == "full" or config.image_size is not None):
        raise InputError(
            f"decay {config.decay} needs tokens that come one after another; here all are read "
            "at once. Leave decay at 1, or choose mask 'causal' and a task of tokens."
        )


def _check_layers(config: "OrbitConfig") -> None:
    """Refuse lists that name layers which are not there."""
    for name, switch in SWITCHES.items():
        value = getattr(config, name)
        if not switch.takes_layers or isinstance(value, str):
            continue
        absent = [layer for layer in value if not 0 <= layer < config.num_hidden_layers]
        if absent:
            raise InputError(
                f"{name}: there is no layer {absent[0]}; layers are 0 to "
                f"{config.num_hidden_layers - 1}."
            )


def check_sizes(config: "OrbitConfig") -> None:
    """Refuse sizes that are not positive and widths that do not divide."""
    for name in SIZES:
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}; expected 1 or more.")
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} does not split into {config.num_attention_heads} "
            "heads. Choose a width that is a multiple of the number of heads."
        )
    if config.position == "rotary":
        _check_rotary(config)
    elif config.rotary_layers != "all":
        raise InputError(
            f"rotary_layers {config.rotary_layers} belongs to position 'rotary'; the position here "
            f"is {config.position!r}. Leave rotary_layers out or choose 'rotary'."
        )
    if config.position == "sinusoidal" and config.hidden_size % 2:
        raise InputError(
            f"hidden_size {config.hidden_size} is odd; sinusoidal positions come in pairs of sine "
            "and cosine. Choose an even width."
        )
    if config.image_size is not None:
        _check_image(config)


def _check_image(config: "OrbitConfig") -> None:
    size = config.image_size
    if isinstance(size, list) and (len(size) != 2 or min(size) < 1):
        raise InputError(f"image_size {size}: expected one side, or [height, width].")
    if any(side % config.patch_size for side in config.image_sides):
        raise InputError(
            f"image_size {size} does not cut into patches of {config.patch_size}. "
            "Choose a patch_size that divides it."
        )


def _check_rotary(config: "OrbitConfig") -> None:
    if config.d_rotary < 2 or config.d_rotary % 2:
        raise InputError(
            f"rotary_fraction {config.rotary_fraction} of a head of width {config.d_head} is "
            f"{config.d_head * config.rotary_fraction:g} coordinates; expected an even number from "
            "2 on. Rotary encodings turn pairs: choose another width, number of heads or fraction."
        )
    if config.rotary_layers != "all" and config.attention == "separable":
        raise InputError(
            "rotary_layers chooses among layers that see all tokens; the attention here is "
            "'separable', whose layers have encodings of their own. Leave rotary_layers out."
        )
