"""What was read of a model's rotary encoding and what was not, in sentences.

Enters: a `Checkpoint`. Leaves: one note for each thing that the weights do not tell, or that the
config leaves unsaid, so that a table of layers is not taken for more than it is.
"""

from collections.abc import Iterator, Mapping

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.encodings.words import ranges
from orbitlens.families.architecture import Position, RotarySpec, Stack

# How configs spell the base of a rotary encoding.
BASE_KEYS = {"rope_theta", "rotary_emb_base", "rotary_base", "rope_local_base_freq"}


def reading_notes(checkpoint: Checkpoint) -> Iterator[str]:
    """Yield what a reader of the table should know."""
    for stack in checkpoint.architecture.stacks:
        yield from _width_notes(stack)
        specs = {k: layer.rotary for k, layer in enumerate(stack.layers)}
        rotated = {k: spec for k, spec in specs.items() if spec is not None}
        if not rotated:
            yield _unrotated_note(stack)
            continue
        yield from _scaling_notes(rotated)
        yield from _base_notes(rotated)
        if not _names_a_base(checkpoint.config):
            base = next(iter(rotated.values())).base
            yield f"the config names no base: {base:g}, what the family has, is taken"


def _width_notes(stack: Stack) -> Iterator[str]:
    if stack.latent is not None:
        turned, plain = stack.latent.d_rotary, stack.latent.d_plain
        yield (
            f"latent attention: {turned} of {turned + plain} coordinates of a head are rotated by "
            f"construction (q_pe, and k_pe that all heads share); their pairing is read, the other "
            f"{plain} have none"
        )
    elif stack.d_head % 2:
        yield (
            f"heads of {stack.d_head} coordinates: an odd one is left over, so that no more than "
            f"{stack.d_head - 1} were read as pairs"
        )


def _unrotated_note(stack: Stack) -> str:
    kind = "no position encoding" if stack.position is Position.NONE else stack.position.value
    return (
        f"the config of the {stack.name} has no rotary encoding ({kind}): there are no angles, "
        "bases or pairings to hold the weights against"
    )


def _scaling_notes(rotated: Mapping[int, RotarySpec]) -> Iterator[str]:
    for kind in sorted({spec.kind for spec in rotated.values()} - {"default"}):
        spec = next(spec for spec in rotated.values() if spec.kind == kind)
        factor = spec.parameters.get("factor")
        said = f"{kind}, factor {factor:g}" if isinstance(factor, int | float) else kind
        yield (
            f"angles are scaled ({said}): losses use it as the config has it, other bases are not "
            "tried, and weights do not tell scalings of one base apart"
        )
    if any(spec.frequency_divisors is not None for spec in rotated.values()):
        yield "the file stores a divisor for every frequency, which weights do not tell"


def _base_notes(rotated: Mapping[int, RotarySpec]) -> Iterator[str]:
    layers: dict[float, list[int]] = {}
    for k, spec in rotated.items():
        layers.setdefault(spec.base, []).append(k)
    if len(layers) > 1:
        named = ", ".join(f"{base:g} in {ranges(layers[base])}" for base in sorted(layers))
        yield f"layers have bases of their own ({named}); none is tried by running"


def _names_a_base(config: object) -> bool:
    if not isinstance(config, Mapping):
        return False
    return any(key in BASE_KEYS or _names_a_base(value) for key, value in config.items())
