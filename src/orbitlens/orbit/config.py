"""OrbitConfig: one small transformer whose every mechanism is a switch.

Enters: names of switches and sizes. Leaves: a config of transformers, checked: an unknown value is
refused with the list of the known ones, and so are widths that do not divide and pairs of switches
that mean nothing together.
"""

from typing import Any, no_type_check

from transformers import PretrainedConfig

from orbitlens.errors import InputError

POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi", "t5")
MASKS = ("causal", "full")
RESIDUALS = ("all", "none", "attention", "mlp")
NORMS = ("pre", "post", "peri", "none")
NORM_KINDS = ("layer", "rms")
ACTIVATIONS = ("gelu", "swiglu")
ATTENTION_KINDS = ("softmax", "plastic", "separable")
AXES = ("columns-rows", "rows-columns", "columns", "rows")
STEMS = ("patch", "conv")
MODULATIONS = ("none", "token-norm", "moto", "moto-replace", "moto-random")
DEFINITE = ("definite-positive", "definite-half", "definite-negative")
REFINEMENTS = (
    "none",
    *DEFINITE,
    "diagonal",
    "guard",
    "guard-data",
    "aligned",
    "penalty",
    "reinjection",
    "rotary-values",
    "anti",
)
SWITCHES: dict[str, tuple[str, ...]] = {
    "position": POSITIONS,
    "mask": MASKS,
    "norm": NORMS,
    "norm_kind": NORM_KINDS,
    "activation": ACTIVATIONS,
    "refinement": REFINEMENTS,
    "attention": ATTENTION_KINDS,
    "axes": AXES,
    "stem": STEMS,
    "modulation": MODULATIONS,
}
# What happens to the patches of an image, and what nothing at all is called.
OF_IMAGES: dict[str, str | int] = {"stem": "patch", "modulation": "none", "token_prop": 0}
# A refinement acts on one kind of encoding; the others here mean nothing to it.
NEEDS_POSITION: dict[str, tuple[str, ...]] = {
    "diagonal": ("rotary",),
    "rotary-values": ("rotary",),
    "reinjection": ("learned", "sinusoidal"),
}


@no_type_check  # transformers checks types itself, and takes keywords its signature does not show
class OrbitConfig(PretrainedConfig):
    """Sizes and switches of an Orbit model; defaults are a small pre-norm decoder.

    Fields beside the usual names of transformers:
        position: how tokens are told apart by place; "t5" is T5's table of biases.
        rotary_base, rotary_fraction: of "rotary"; the fraction is the part of a head that turns.
        mask: who sees whom. A class token sees all and is seen by no patch where this is causal.
        residual: which sums keep the stream they are added to: "all", "none", those behind
            "attention" or "mlp" only, or a list of layers that keep both of theirs.
        norm: in front of each branch ("pre"), on the stream behind it ("post"), in front and on
            the branch's output ("peri"), or nowhere.
        mlp: whether layers have one; shared_layers: one set of weights for all layers.
        refinement: theory section 6; `penalty_weight` is the factor of "penalty".
        attention: "softmax", or "plastic": a state that each token writes to by a local rule, with
            no softmax; `decay` is what the state keeps from one token to the next. "separable":
            layers of an image see columns and rows in turn, in the order of `axes`.
        image_size: side of square images, or [height, width].
        stem: what patches are cut from: the image ("patch"), or a 3 x 3 convolution of it ("conv").
        modulation: what patches do to each other before any attention (`moto.py`).
        token_prop: factor of the loss of a linear map from tokens back to pixels; 0: none.
    """

    model_type = "orbit"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - as transformers has it

    vocab_size: int = 128
    hidden_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    max_position_embeddings: int = 256
    position: str = "learned"
    rotary_base: float | int = 10000.0
    rotary_fraction: float | int = 1.0
    mask: str = "causal"
    residual: str | list[int] = "all"
    norm: str = "pre"
    norm_kind: str = "layer"
    layer_norm_eps: float = 1e-5
    mlp: bool = True
    activation: str = "gelu"
    bias: bool = False
    shared_layers: bool = False
    refinement: str = "none"
    penalty_weight: float | int = 1.0
    attention: str = "softmax"
    decay: float | int = 1.0
    axes: str = "columns-rows"
    stem: str = "patch"
    modulation: str = "none"
    token_prop: float | int = 0.0
    relative_attention_num_buckets: int = 32
    relative_attention_max_distance: int = 128
    initializer_range: float = 0.02
    image_size: int | list[int] | None = None
    patch_size: int = 2
    num_channels: int = 1
    use_cache: bool = True
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None

    def __post_init__(self, **kwargs: Any) -> None:  # noqa: ANN401 - as transformers has it
        """Fill in what depends on other fields, and check."""
        if self.intermediate_size is None:
            self.intermediate_size = 4 * self.hidden_size
        super().__post_init__(**kwargs)
        check_switches(self)
        check_sizes(self)

    @property
    def d_head(self) -> int:
        """Width of one head."""
        return int(self.hidden_size // self.num_attention_heads)

    @property
    def is_definite(self) -> bool:
        """Whether heads have maps as wide as the model."""
        return self.refinement in DEFINITE

    @property
    def d_rotary(self) -> int:
        """How many coordinates of a head's queries and keys turn."""
        width = self.hidden_size if self.is_definite else self.d_head
        return int(width * self.rotary_fraction)

    @property
    def n_patches(self) -> int:
        """Number of patches of an image; 0 for a model of tokens."""
        return 0 if self.image_size is None else self.grid[0] * self.grid[1]

    @property
    def image_sides(self) -> tuple[int, int]:
        """Height and width of an image."""
        size = self.image_size or 0
        height, width = size if isinstance(size, list) else (size, size)
        return height, width

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of patches."""
        height, width = self.image_sides
        return height // self.patch_size, width // self.patch_size


def known(name: str, value: object) -> str:
    """Return the value of a switch if it is one of its values.

    Raises:
        InputError: it is not; the message lists those that are.
    """
    values = SWITCHES[name]
    if not isinstance(value, str) or value not in values:
        raise InputError(f"{name} {value!r} is unknown. Choose one of: {', '.join(values)}.")
    return value


def residual_plan(config: OrbitConfig) -> tuple[tuple[bool, bool], ...]:
    """Return for every layer whether the sums behind attention and behind the MLP are kept."""
    n_layers = config.num_hidden_layers
    if isinstance(config.residual, list):
        return tuple(
            (layer in config.residual, layer in config.residual) for layer in range(n_layers)
        )
    kept = {"all": (True, True), "none": (False, False)}
    kept |= {"attention": (True, False), "mlp": (False, True)}
    return (kept[config.residual],) * n_layers


def check_switches(config: OrbitConfig) -> None:
    """Refuse unknown values, and refinements that mean nothing with the other switches."""
    for name in SWITCHES:
        known(name, getattr(config, name))
    _check_residual(config)
    _check_attention(config)
    _check_of_images(config)
    needed = NEEDS_POSITION.get(config.refinement)
    if needed is not None and config.position not in needed:
        raise InputError(
            f"refinement {config.refinement!r} changes the encoding {' or '.join(needed)}; the "
            f"position here is {config.position!r}. Choose that encoding or another refinement."
        )


def _check_of_images(config: OrbitConfig) -> None:
    """Refuse what only patches can have done to them in a model of tokens."""
    for name, nothing in OF_IMAGES.items():
        value = getattr(config, name)
        if config.image_size is None and value != nothing:
            raise InputError(
                f"{name} {value!r} acts on the patches of an image; this is a model of tokens. "
                f"Choose a task of images, such as digits, or leave {name} at {nothing!r}."
            )
    if not 0 <= config.token_prop < float("inf"):
        raise InputError(f"token_prop is {config.token_prop}; expected a number, 0 or more.")


def _check_attention(config: OrbitConfig) -> None:
    """Refuse switches that mean nothing with the kind of attention."""
    if config.attention != "softmax" and config.refinement not in {"none", "reinjection"}:
        raise InputError(
            f"refinement {config.refinement!r} is one of softmax attention; the attention here is "
            f"{config.attention!r}. Choose refinement 'none' or attention 'softmax'."
        )
    if config.attention == "plastic":
        _check_plastic(config)
    elif config.decay != 1:
        raise InputError(
            f"decay {config.decay} is one of attention 'plastic'; the attention here is "
            f"{config.attention!r}. Leave decay at 1 or choose 'plastic'."
        )
    _check_separable(config)


def _check_separable(config: OrbitConfig) -> None:
    if config.attention != "separable":
        if config.axes != "columns-rows":
            raise InputError(
                f"axes {config.axes!r} belongs to attention 'separable'; the attention here is "
                f"{config.attention!r}. Leave axes out or choose 'separable'."
            )
        return
    if config.image_size is None:
        raise InputError(
            "attention 'separable' looks along the columns and rows of an image; this is a model "
            "of tokens. Choose a task of images, such as digits, or another attention."
        )
    if config.refinement == "reinjection":
        raise InputError(
            "refinement 'reinjection' adds positions before every layer, as attention 'separable' "
            "does by itself. Choose refinement 'none'."
        )


def _check_plastic(config: OrbitConfig) -> None:
    if config.position in {"alibi", "t5"}:
        raise InputError(
            f"position {config.position!r} is added to the scores inside a softmax, which plastic "
            "attention does not have. Choose none, learned, sinusoidal or rotary."
        )
    if not 0 < config.decay <= 1:
        raise InputError(f"decay is {config.decay}; expected a number above 0, and 1 at most.")
    if config.decay != 1 and (config.mask == "full" or config.image_size is not None):
        raise InputError(
            f"decay {config.decay} needs tokens that come one after another; here all are read "
            "at once. Leave decay at 1, or choose mask 'causal' and a task of tokens."
        )


def _check_residual(config: OrbitConfig) -> None:
    value = config.residual
    if isinstance(value, str) and value in RESIDUALS:
        return
    if isinstance(value, str):
        raise InputError(
            f"residual {value!r} is unknown. Choose one of: {', '.join(RESIDUALS)}; or a list of "
            "the layers that keep theirs, such as [0, 2]."
        )
    wrong = [layer for layer in value if not 0 <= layer < config.num_hidden_layers]
    if wrong:
        raise InputError(
            f"residual: there is no layer {wrong[0]}; layers are 0 to "
            f"{config.num_hidden_layers - 1}."
        )


def check_sizes(config: OrbitConfig) -> None:
    """Refuse sizes that are not positive and widths that do not divide."""
    for name in (
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "max_position_embeddings",
    ):
        if getattr(config, name) < 1:
            raise InputError(f"{name} is {getattr(config, name)}; expected 1 or more.")
    if config.hidden_size % config.num_attention_heads:
        raise InputError(
            f"hidden_size {config.hidden_size} does not split into {config.num_attention_heads} "
            "heads. Choose a width that is a multiple of the number of heads."
        )
    if config.position == "rotary":
        _check_rotary(config)
    if config.position == "sinusoidal" and config.hidden_size % 2:
        raise InputError(
            f"hidden_size {config.hidden_size} is odd; sinusoidal positions come in pairs of sine "
            "and cosine. Choose an even width."
        )
    if config.image_size is not None:
        _check_image(config)


def _check_image(config: OrbitConfig) -> None:
    size = config.image_size
    if isinstance(size, list) and (len(size) != 2 or min(size) < 1):
        raise InputError(f"image_size {size}: expected one side, or [height, width].")
    if any(side % config.patch_size for side in config.image_sides):
        raise InputError(
            f"image_size {size} does not cut into patches of {config.patch_size}. "
            "Choose a patch_size that divides it."
        )


def _check_rotary(config: OrbitConfig) -> None:
    if not 0 < config.rotary_fraction <= 1 or config.d_rotary < 2 or config.d_rotary % 2:
        raise InputError(
            f"rotary_fraction {config.rotary_fraction} of a head of width {config.d_head} is "
            f"{config.d_head * config.rotary_fraction:g} coordinates; expected an even number from "
            "2 on. Rotary encodings turn pairs: choose another width, number of heads or fraction."
        )
    if config.rotary_base <= 1:
        raise InputError(f"rotary_base is {config.rotary_base}; expected a number above 1.")
