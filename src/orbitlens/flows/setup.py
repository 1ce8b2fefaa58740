"""Setup: one simulation as a handful of numbers and names, for the command line and for sweeps.

Enters: a `Setup`. Leaves: a `System` and its tokens. Every numeric field can be swept.
"""

import math
from dataclasses import dataclass, fields, replace

import torch

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.examples import EXAMPLES, example_system
from orbitlens.flows.system import Geometry, Mask, System, system_of_maps
from orbitlens.heads.head import alibi_slopes

POSITIONS = ("none", "absolute", "reinjected", "rotary", "alibi")
MIXED = "mixed"  # the family of systems between anti-aligned and aligned


@dataclass(frozen=True, kw_only=True)
class SimulateOptions:
    """How to simulate a flow, whosever it is."""

    n_tokens: int = 64
    d_model: int = 3  # of the named systems; a head has its own
    beta: float = 1.0
    alignment: float = 0.0  # of the system "mixed": V = a W + sqrt(1 - a^2) R, W > 0 and R random
    position: str = "none"
    position_size: float = 1.0  # length of the absolute encodings
    rotary_base: float = 10000.0
    mask: Mask | None = None  # of the named systems (None: full); a head has its own
    window: int = 0  # tokens; 0: none, or a head's own
    geometry: Geometry | None = None  # None: a system's own; of a model with norms, the sphere
    token_length: float | None = None  # of a model's tokens in its stream; None: see `normed.py`
    until: float = 10.0
    rtol: float = 1e-6
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Setup(SimulateOptions):
    """A named system and how to simulate it."""

    system: str = "aligned"

    @classmethod
    def of(cls, system: str, options: SimulateOptions) -> "Setup":
        """Return options for a named system."""
        given = {f.name: getattr(options, f.name) for f in fields(SimulateOptions)}
        return cls(system=system, **given)


def build(setup: SimulateOptions, given: System | None = None) -> tuple[System, Tokens]:
    """Return the system and the start of a setup; options alone need a system `given`.

    Raises:
        InputError: a name is unknown, a number is out of range, or a mask was set for a system that
            has its own.
    """
    if setup.n_tokens < 1:
        raise InputError(f"{setup.n_tokens} tokens were asked for; expected at least 1.")
    if given is not None and setup.mask not in {None, given.mask}:
        raise InputError(
            f"the mask {setup.mask} was asked for, and this system's own is {given.mask}. Leave it "
            "out, or give a System with that mask."
        )
    generator = torch.Generator().manual_seed(setup.seed)
    base = given if given is not None else _named(setup, generator)
    tokens = torch.randn(setup.n_tokens, base.d_model, generator=generator, dtype=torch.float64)
    system = replace(
        base,
        beta=base.beta * setup.beta,
        mask=setup.mask or base.mask,
        window=setup.window or base.window,
        geometry=setup.geometry or base.geometry,
    )
    return _with_position(system, setup, generator), tokens


def _named(setup: SimulateOptions, generator: torch.Generator) -> System:
    if not isinstance(setup, Setup):
        raise InputError("these options name no system; give one, or a Setup with a name.")
    if setup.system == MIXED:
        return _mixed(setup, generator)
    if setup.system not in EXAMPLES:
        known = ", ".join([*EXAMPLES, MIXED])
        raise InputError(f"no system is called {setup.system!r}. Known: {known}.")
    return example_system(setup.system, d_model=setup.d_model, seed=setup.seed)


def _mixed(setup: SimulateOptions, generator: torch.Generator) -> System:
    a, d = setup.alignment, setup.d_model
    if not -1 <= a <= 1 or d < 1:
        raise InputError(
            f"the alignment is {a} and the width {d}; expected -1 to 1, and 1 or more."
        )
    eye = torch.eye(d, dtype=torch.float64)
    noise = torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d)
    return system_of_maps(eye, a * eye + math.sqrt(1 - a * a) * noise)


def _with_position(system: System, setup: SimulateOptions, generator: torch.Generator) -> System:
    kind = setup.position
    if kind == "none":
        return system
    if kind in {"absolute", "reinjected"}:
        shape = (setup.n_tokens, system.d_model)
        points = torch.randn(shape, generator=generator, dtype=torch.float64)
        points = setup.position_size * points / math.sqrt(system.d_model)
        return replace(system, positions=points, reinjected=kind == "reinjected")
    if kind == "rotary":
        return replace(system, rotary=_rotary(system, setup))
    if kind == "alibi":
        slopes = torch.tensor(alibi_slopes(system.n_heads), dtype=torch.float64)
        return replace(system, alibi_slopes=slopes)
    raise InputError(f"the position encoding {kind!r} is unknown. Known: {', '.join(POSITIONS)}.")


def _rotary(system: System, setup: SimulateOptions) -> RotarySpec:
    turned = system.d_head - system.d_head % 2
    if turned == 0 or setup.rotary_base <= 0:
        raise InputError(
            f"a rotary encoding needs heads at least 2 wide and a positive base; these are "
            f"{system.d_head} wide, and the base is {setup.rotary_base}."
        )
    return RotarySpec(
        base=setup.rotary_base, d_rotary=turned, d_head=system.d_head, pairing=Pairing.HALVES
    )
