"""What a reader of a scan should know: parts that are left out or approximate, and why."""

from collections.abc import Iterable

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.families.architecture import Position, Stack
from orbitlens.scanning.options import ScanOptions
from orbitlens.scanning.scan_result import LayerScan


def scan_flags(
    checkpoint: Checkpoint, layers: Iterable[LayerScan], options: ScanOptions
) -> tuple[str, ...]:
    """Return what a scan leaves out or approximates, each with the reason."""
    flags = list(checkpoint.architecture.flags)
    for stack in checkpoint.architecture.stacks:
        flags += _stack_flags(stack, options)
    types = {info.dtype for info in checkpoint.source.tensors.values()}
    packed = sorted(t for t in types if t.startswith("F8"))
    if packed:
        flags.append(f"weights are stored as {', '.join(packed)}: their unpacked values were read")
    listed = list(layers)
    worst = max((layer.relative_error for layer in listed), default=0.0)
    if worst > 0:
        flags.append(
            f"rates of whole layers are estimated (Lanczos quadrature, standard error of the "
            f"index up to {worst:.1%}); exact=True computes them in full"
        )
    if any(layer.ov_abscissa is None for layer in listed):
        flags.append(
            "the spectrum of a layer's summed value maps was not computed at this width; "
            "exact=True computes it"
        )
    return tuple(dict.fromkeys(flags))


def _stack_flags(stack: Stack, options: ScanOptions) -> list[str]:
    """Say what a reading of this stack leaves out; each line names the part and the reason."""
    rotary_here = stack.position is Position.ROTARY
    biased = stack.position in {Position.ALIBI, Position.T5_BIAS}
    windows = sorted({layer.window for layer in stack.layers if layer.window is not None})
    notes = {
        "tokens are normalised in front of attention: the norm's gain is folded into the maps; "
        "rates speak of the flow of these maps without the norm, certificates of that with "
        "it": stack.norm is not None,
        "queries and keys are normalised: score maps are taken at their typical length, exact in "
        "direction and approximate in size": stack.qk_norm is not None,
        f"scores pass a soft cap of {stack.softcap}: the score map is its slope at small "
        "scores": stack.softcap is not None,
        f"queries, keys and values are clipped at {stack.qk_clip}: maps are those of unclipped "
        "tokens": stack.qk_clip is not None,
        "attention's output is normalised: its gain is folded at the output's typical length, "
        "exact in direction and approximate in size": stack.output_norm,
        "rates are those at rotary offset 0; a context of N tokens (context=N) adds what it leaves "
        "of them": rotary_here and options.context is None,
        f"the {stack.position.value} bias of scores depends on positions alone and is no part of "
        "a score map": biased,
        f"attention sees a window of {', '.join(map(str, windows))} tokens in some layers": bool(
            windows
        ),
    }
    return [text for text, applies in notes.items() if applies]
