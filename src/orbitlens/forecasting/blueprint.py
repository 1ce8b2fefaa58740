"""Blueprint: what must be known of an architecture to say how its untrained layers move tokens."""

from dataclasses import dataclass

from orbitlens.errors import InputError
from orbitlens.orbit.switches import DEFINITE

NORMS = ("pre", "post", "peri", "none")
MASKS = ("causal", "full")
POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi")
ACTIVATIONS = ("relu", "gelu", "swiglu", "geglu")
REFINEMENTS = ("none", *DEFINITE)
SWITCHES = {
    "norm": NORMS,
    "mask": MASKS,
    "position": POSITIONS,
    "activation": ACTIVATIONS,
    "refinement": REFINEMENTS,
}
RANGES = {
    "layers": (1, 1024),
    "width": (1, 1 << 16),
    "heads": (1, 1 << 12),
    "context": (1, 1024),
    "inner": (0, 1 << 20),
    "vocabulary": (1, 1 << 24),
    "init": (1e-12, 1e3),
    "output_init": (1e-12, 1e3),
    "residual_scale": (1e-12, 1e3),
    "rotary_base": (1e-3, 1e30),
    "epsilon": (0.0, 1e3),
}


@dataclass(frozen=True, kw_only=True)
class Blueprint:
    """Sizes, switches and first weights of a stack; all weights are normal with mean 0."""

    layers: int = 12
    width: int = 512
    heads: int = 8
    inner: int | None = None  # width of the MLP; None: four times the width; 0: no MLP
    norm: str = "pre"  # "peri": in front of each branch and on its output
    init: float = 0.02  # standard deviation of weights and embeddings
    output_init: float | None = None  # of maps that write to the stream; None: `init`
    residual_scale: float = 1.0  # what a branch is multiplied by before it is added
    activation: str = "gelu"
    mask: str = "causal"
    position: str = "learned"
    rotary_base: float = 10000.0
    qk_norm: bool = False  # queries and keys at length √d_head
    context: int = 64
    vocabulary: int = 1000  # tokens are drawn uniformly from it
    shares_embedding: bool = False  # one vector is added to all tokens, as BERT's token type
    embedding_norm: bool = False  # a norm in front of the first layer
    epsilon: float = 1e-5  # of the norms
    refinement: str = "none"  # of the lab: plain attention, or definite heads

    def __post_init__(self) -> None:
        """Refuse what no model could be.

        Raises:
            InputError: with what was expected.
        """
        for name, known in SWITCHES.items():
            value = getattr(self, name)
            if value not in known:
                raise InputError(f"{name} {value!r} is unknown. Choose one of: {', '.join(known)}.")
        self._check_numbers()
        if self.width % self.heads:
            raise InputError(
                f"a width of {self.width} does not split into {self.heads} heads. Choose a divisor."
            )
        if self.position == "rotary" and self.d_head % 2:
            raise InputError(f"heads are {self.d_head} wide; a rotary encoding turns pairs.")

    def _check_numbers(self) -> None:
        """Refuse numbers that are NaN or of another size."""
        for name, (least, most) in RANGES.items():
            value = getattr(self, name)
            if value is None and name in {"inner", "output_init"}:
                continue
            if not least <= value <= most:
                raise InputError(f"{name} is {value}; expected {least:g} to {most:g}.")

    @property
    def d_head(self) -> int:
        """Width of a head."""
        return self.width // self.heads

    @property
    def d_inner(self) -> int:
        """Width of the MLP."""
        return 4 * self.width if self.inner is None else self.inner

    @property
    def n_branches(self) -> int:
        """Branches of a layer: attention, and an MLP where there is one."""
        return 2 if self.d_inner else 1

    @property
    def out_std(self) -> float:
        """Standard deviation of maps that write to the stream, the residual scale included."""
        return (self.init if self.output_init is None else self.output_init) * self.residual_scale

    @property
    def is_gated(self) -> bool:
        """Whether the MLP has a gate."""
        return self.activation.endswith("glu")
