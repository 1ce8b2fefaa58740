"""Ways to stretch a rotary encoding, as configs have them, and a model run under each.

Enters: a `RotarySpec` and a factor. Leaves: `Scaling`s: position interpolation (arXiv 2306.15595),
an NTK-aware base, YaRN (arXiv 2309.00071), each as the `rope_parameters` of transformers; and a
context within which a running module turns its queries and keys so. Nothing is written anywhere.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from orbitlens.errors import InputError
from orbitlens.families.architecture import RotarySpec, Stack
from orbitlens.heads.rotary import Rotation, resolve_rotary
from orbitlens.running.model import Model

FACTORS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """One way to stretch a rotary encoding."""

    kind: str  # "none", "linear", "ntk" or "yarn"
    factor: float
    base: float  # of the frequencies, with it
    trained: int

    @property
    def name(self) -> str:
        """What tables call it."""
        return "as it is" if self.kind == "none" else f"{self.kind} {self.factor:g}"

    def spec(self, plain: RotarySpec) -> RotarySpec:
        """Return the encoding with it; `plain` has no scaling of its own."""
        if self.kind in {"none", "ntk"}:
            return replace(plain, base=self.base)
        parameters = {"factor": self.factor}
        if self.kind == "yarn":
            parameters["original_max_position_embeddings"] = self.trained
        return replace(plain, kind=self.kind, parameters=parameters)

    def rope_parameters(self, plain: RotarySpec) -> dict[str, Any]:
        """Return what goes into a config of transformers 5 under `rope_parameters`."""
        chosen: dict[str, Any] = {"rope_type": "default", "rope_theta": self.base}
        if self.kind in {"linear", "yarn"}:
            chosen |= {"rope_type": self.kind, "factor": self.factor}
        if self.kind == "yarn":
            chosen["original_max_position_embeddings"] = self.trained
        if plain.d_rotary < plain.d_head:
            chosen["partial_rotary_factor"] = plain.d_rotary / plain.d_head
        return chosen


def scaling(kind: str, factor: float, plain: RotarySpec, trained: int) -> Scaling:
    """Return one scaling.

    NTK-aware: base * factor^(d / (d - 2)), so that the slowest plane turns `factor` times slower
    and the fastest as before.
    """
    width = plain.d_rotary
    grown = plain.base * factor ** (width / (width - 2)) if kind == "ntk" else plain.base
    return Scaling(kind=kind, factor=factor, base=grown, trained=trained)


def all_scalings(
    plain: RotarySpec, trained: int, factors: Sequence[float] = FACTORS
) -> tuple[Scaling, ...]:
    """Return all that are tried: none, then every kind with every factor."""
    kinds = ("linear", "ntk", "yarn") if plain.d_rotary > 2 else ("linear", "yarn")
    return (
        scaling("none", 1.0, plain, trained),
        *(scaling(kind, factor, plain, trained) for kind in kinds for factor in factors),
    )


def one_encoding(stack: Stack) -> RotarySpec:
    """Return the rotary encoding that all rotated layers of a stack share, unscaled.

    Raises:
        InputError: there is none, layers have their own, or it is scaled already.
    """
    specs = {layer.number: layer.rotary for layer in stack.layers if layer.rotary is not None}
    if not specs:
        raise InputError("no layer is rotated, so that there is no encoding to stretch.")
    first = next(iter(specs.values()))
    if stack.latent is not None:
        raise InputError("latent attention rotates a part of its own; stretching it is not tried.")
    if len({(spec.base, spec.d_rotary, spec.kind) for spec in specs.values()}) > 1:
        bases = ", ".join(f"{base:g}" for base in sorted({s.base for s in specs.values()}))
        raise InputError(f"layers have encodings of their own (bases {bases}); none is stretched.")
    if first.kind != "default" or first.frequency_divisors is not None:
        what = first.kind if first.kind != "default" else "per-plane factors"
        raise InputError(f"the encoding is stretched already ({what}); it is left as it is.")
    return first


@contextmanager
def turned_by(model: Model, rotation: Rotation) -> Iterator[None]:
    """Turn queries and keys by other frequencies for as long as the context lasts.

    Raises:
        InputError: angles of this family come from no single table.
    """
    module = model.module
    around = getattr(getattr(module, "model", None), "surroundings", None)
    if around is not None:  # the lab's models
        around.turn_by(rotation)
        try:
            yield
        finally:
            around.turn_by(None)
        return
    tables = [part for part in module.modules() if hasattr(part, "inv_freq")]
    count = rotation.frequencies.numel()
    if len(tables) != 1 or tables[0].inv_freq.numel() != count:
        raise InputError("this model's angles come from no single table, so none is tried.")
    table = tables[0]
    kept, factor = table.inv_freq.clone(), table.attention_scaling
    try:
        table.inv_freq.copy_(rotation.frequencies)
        table.attention_scaling = rotation.factor
        yield
    finally:
        table.inv_freq.copy_(kept)
        table.attention_scaling = factor


@contextmanager
def scaled(model: Model, plain: RotarySpec, chosen: Scaling) -> Iterator[None]:
    """Run a model under a scaling for as long as the context lasts."""
    if chosen.kind == "none":
        yield
        return
    with turned_by(model, resolve_rotary(chosen.spec(plain), chosen.trained)):
        yield


def config_setting(model: Model, plain: RotarySpec, chosen: Scaling) -> dict[str, Any] | None:
    """Return what to set in the model's config; None where its code knows no such scaling."""
    if not hasattr(model.module.config, "rotary_base"):
        return {"rope_parameters": chosen.rope_parameters(plain)}
    return {"rotary_base": chosen.base} if chosen.kind in {"none", "ntk"} else None
