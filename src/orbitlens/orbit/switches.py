"""The switches of an Orbit model, each declared once: its name, values, default and meaning.

Enters: nothing. Leaves: `Switches`, a dataclass with one field a switch, and `SWITCHES`, the same
by name. All else follows from the field: an attribute of `OrbitConfig` and its check, a setting of
a run and a key of a sweep file (`RunConfig` inherits it), an option of `orbitlens train`, a row of
the table in docs/lab.md. A new switch is one field here, and the code that reads it.
"""

from dataclasses import dataclass, field, fields
from typing import Any

from orbitlens.errors import InputError

DEFINITE = ("definite-positive", "definite-half", "definite-negative")
RELEASED = ("released-positive", "released-half", "released-negative")
THEOREM = ("theorem-positive", "theorem-half", "theorem-negative")


@dataclass(frozen=True, kw_only=True)
class Switch:
    """One mechanism of the model that can be chosen, sized or taken away."""

    name: str
    kind: type  # str, bool or float
    default: str | bool | float
    meaning: str  # a phrase
    values: tuple[str, ...] = ()  # of a choice
    takes_layers: bool = False  # a list of layers will do in place of a value
    above: float | None = None  # a number must exceed this,
    least: float | None = None  # be no smaller than this,
    most: float | None = None  # and no larger
    of_images: bool = False  # acts on the patches of an image; at its default in a model of tokens
    later: bool = False  # declared after the first runs: at its default it is left out of a hash

    @property
    def expected(self) -> str:
        """What a number must be, in words."""
        bounds = [f"above {self.above:g}"] if self.above is not None else []
        bounds += [f"{self.least:g} or more"] if self.least is not None else []
        bounds += [f"at most {self.most:g}"] if self.most is not None else []
        return "a finite number" + (f" {' and '.join(bounds)}" if bounds else "")

    def allows(self, value: object) -> bool:
        """Whether this is one of its values; lists of layers are the config's to check."""
        if self.takes_layers and isinstance(value, list | tuple):
            return all(type(layer) is int for layer in value)
        if self.values:
            return isinstance(value, str) and value in self.values
        if self.kind is bool or isinstance(value, bool):
            return self.kind is bool and isinstance(value, bool)
        return isinstance(value, int | float) and self._in_range(value)

    def _in_range(self, value: float) -> bool:
        above = -float("inf") if self.above is None else self.above
        least = -float("inf") if self.least is None else self.least
        most = float("inf") if self.most is None else self.most
        return above < value < float("inf") and least <= value <= most

    def check(self, value: object) -> None:
        """Refuse a value that is none of its own.

        Raises:
            InputError: with the values it takes.
        """
        if self.allows(value):
            return
        if self.values:
            known = ", ".join(self.values)
            known += "; or a list of layers, such as [0, 2]" if self.takes_layers else ""
            raise InputError(f"{self.name} {value!r} is unknown. Choose one of: {known}.")
        expected = "true or false" if self.kind is bool else self.expected
        raise InputError(f"{self.name} is {value!r}; expected {expected}.")


def switch(default: str | bool | float, meaning: str, **declared: Any) -> Any:  # noqa: ANN401
    """Declare a switch as the field of a dataclass; `declared` are fields of `Switch`."""
    return field(default=default, metadata={"switch": {"meaning": meaning, **declared}})


@dataclass(frozen=True, kw_only=True)
class Switches:
    """All switches at their defaults: a small pre-norm decoder."""

    position: str = switch(
        "learned",
        "position encoding",
        values=("none", "learned", "sinusoidal", "rotary", "alibi", "t5"),
    )
    rotary_base: float = switch(10000.0, "base of the rotary frequencies", above=1.0)
    rotary_fraction: float = switch(
        1.0, "fraction of a head's coordinates that the rotary encoding turns", above=0.0, most=1.0
    )
    rotary_layers: str | tuple[int, ...] = switch(
        "all",
        "layers whose queries and keys the rotary encoding turns; the others have no encoding",
        values=("all",),
        takes_layers=True,
        later=True,
    )
    mask: str = switch(
        "causal",
        "which tokens a token attends to; a class token attends to all patches either way",
        values=("causal", "full"),
    )
    residual: str | tuple[int, ...] = switch(
        "all",
        "which residual sums are kept; a list of layers keeps both of theirs",
        values=("all", "none", "attention", "mlp"),
        takes_layers=True,
    )
    norm: str = switch(
        "pre",
        "place of the norms: before each branch, on the stream after it, before it and on its "
        "output, or nowhere",
        values=("pre", "post", "peri", "none"),
    )
    norm_kind: str = switch("layer", "LayerNorm or RMSNorm", values=("layer", "rms"))
    mlp: bool = switch(True, "whether layers have an MLP")
    activation: str = switch("gelu", "activation of the MLP", values=("gelu", "swiglu"))
    bias: bool = switch(False, "biases in linear maps and LayerNorm", later=True)
    shared_layers: bool = switch(False, "one set of weights for all layers")
    refinement: str = switch(
        "none",
        "a constraint on heads or a change of what positions do",
        values=(
            "none",
            *DEFINITE,
            *RELEASED,
            *THEOREM,
            "diagonal",
            "guard",
            "guard-data",
            "aligned",
            "penalty",
            "reinjection",
            "rotary-values",
            "anti",
            "centred",
            "centred-fixed",
            "averaging",
        ),
    )
    penalty_weight: float = switch(1.0, "weight of refinement `penalty` in the loss")
    attention: str = switch(
        "softmax",
        "softmax, linear attention with a decaying state, or attention along columns and rows",
        values=("softmax", "plastic", "separable"),
        later=True,
    )
    qk_norm: bool = switch(
        False, "an RMSNorm on the queries and keys of every head, before they turn", later=True
    )
    decay: float = switch(
        1.0,
        "what the state of plastic attention keeps from one token to the next",
        above=0.0,
        most=1.0,
        later=True,
    )
    axes: str = switch(
        "columns-rows",
        "lines that layers of separable attention act along, in turn",
        values=("columns-rows", "rows-columns", "columns", "rows"),
        later=True,
    )
    stem: str = switch(
        "patch",
        "what patches are cut from: the image, or a 3 x 3 convolution of it",
        values=("patch", "conv"),
        of_images=True,
        later=True,
    )
    modulation: str = switch(
        "none",
        "how patches act on each other before any attention",
        values=("none", "token-norm", "moto", "moto-replace", "moto-random"),
        of_images=True,
        later=True,
    )
    token_prop: float = switch(
        0.0,
        "weight in the loss of a linear map from tokens back to their pixels",
        least=0.0,
        of_images=True,
        later=True,
    )


def declared_switches(declaration: type[Switches]) -> dict[str, Switch]:
    """Return the switches of a declaration by name, in its order."""
    kinds: dict[Any, type] = {bool: bool, float: float}
    return {
        each.name: Switch(
            name=each.name,
            kind=kinds.get(each.type, str),
            default=each.default,  # type: ignore[arg-type]
            **each.metadata["switch"],
        )
        for each in fields(declaration)
    }


SWITCHES = declared_switches(Switches)
