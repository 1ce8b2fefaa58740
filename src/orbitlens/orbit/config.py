"""OrbitConfig: one small transformer whose every mechanism is a switch.

Enters: names of switches and sizes. Leaves: a config of transformers, checked: an unknown value is
refused with the list of the known ones, and so are widths that do not divide and pairs of switches
that mean nothing together.
"""

from dataclasses import fields, make_dataclass
from typing import Any, no_type_check

from transformers import PretrainedConfig

from orbitlens.orbit.checks import check_sizes, check_switches
from orbitlens.orbit.switches import DEFINITE, THEOREM, Switches


def switch_fields(declaration: type[Switches]) -> type:
    """Return a dataclass with a field for each switch, of types that JSON has."""
    types: dict[Any, Any] = {float: float | int, str | tuple[int, ...]: str | list[int]}
    named = [
        (each.name, types.get(each.type, each.type), each.default) for each in fields(declaration)
    ]
    return make_dataclass("SwitchFields", named, kw_only=True)


@no_type_check  # transformers checks types itself, and takes keywords its signature does not show
class OrbitConfig(PretrainedConfig, switch_fields(Switches)):  # type: ignore[misc]
    """Sizes and switches of an Orbit model; defaults are a small pre-norm decoder.

    Switches are the fields of `orbitlens.orbit.switches.Switches`; sizes have the names that
    transformers gives them. `image_size` is the side of square images, or [height, width].
    """

    model_type = "orbit"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - as transformers has it

    vocab_size: int = 128
    hidden_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    intermediate_size: int | None = None
    max_position_embeddings: int = 256
    layer_norm_eps: float = 1e-5
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
    def holds_signs(self) -> bool:
        """Whether the maps that heads apply have signs that a gain in front would undo."""
        return self.refinement in (*DEFINITE, *THEOREM)

    @property
    def d_rotary(self) -> int:
        """How many coordinates of a head's queries and keys turn."""
        width = self.hidden_size if self.is_definite else self.d_head
        return int(width * self.rotary_fraction)

    def is_turned(self, layer: int) -> bool:
        """Whether a rotary encoding turns the queries and keys of a layer."""
        chosen = self.rotary_layers
        return self.position == "rotary" and (isinstance(chosen, str) or layer in chosen)

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
