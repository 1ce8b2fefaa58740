"""Parts of a running model cut for a while: heads, attention, MLPs, norms, whole blocks.

Enters: a `Model` and cuts by name: "head 1.3", "attention 1", "mlp 1", "norm 1 attn_norm", "norm
final", "block 1". Leaves: a context within which its module runs without them. Weights are not
touched. What a cut is:

    head        what it writes is zero (`ablation.py`)
    attention   what it adds is zero, its bias included
    mlp         the stream that left attention goes on as it is
    block       the stream that entered goes on as it is
    norm        all tokens are divided by one number, the mean of their lengths, in place of each
                by its own: what is left of the norm is its gain
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.running.ablation import without_heads
from orbitlens.running.capture import LayerModules, layer_modules
from orbitlens.running.model import Model

FINAL = -1  # the layer that the norm behind the last one is said to be in
FORMS = '"head 1.3", "attention 1", "mlp 1", "block 1", "norm 1 NAME" or "norm final"'


class PartKind(StrEnum):
    """What kind of part."""

    LAYER = "layer"
    ATTENTION = "attention"
    MLP = "mlp"
    HEAD = "head"
    NORM = "norm"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One part that a model can run without."""

    kind: PartKind
    layer: int  # FINAL: behind the last one
    head: int | None = None
    norm: str = ""  # module within the layer

    def __str__(self) -> str:
        """Name it as people do."""
        if self.kind is PartKind.HEAD:
            return f"head {self.layer}.{self.head}"
        return f"{'MLP' if self.kind is PartKind.MLP else self.kind.value} {self.layer}"


def parse_cut(text: str) -> Part:
    """Read the name of a cut.

    >>> parse_cut("head 1.3").head
    3

    Raises:
        InputError: this names no cut.
    """
    if text == "norm final":
        return Part(kind=PartKind.NORM, layer=FINAL)
    found = re.fullmatch(r"(attention|mlp|block) (\d{1,4})", text)
    if found:
        kind = PartKind.LAYER if found[1] == "block" else PartKind(found[1])
        return Part(kind=kind, layer=int(found[2]))
    found = re.fullmatch(r"head (\d{1,4})\.(\d{1,4})", text)
    if found:
        return Part(kind=PartKind.HEAD, layer=int(found[1]), head=int(found[2]))
    found = re.fullmatch(r"norm (\d{1,4}) ([\w.]{1,80})", text)
    if found:
        return Part(kind=PartKind.NORM, layer=int(found[1]), norm=found[2])
    raise InputError(f"{text[:60]!r} names nothing that can be cut. Expected {FORMS}.")


@contextmanager
def without_parts(
    model: Model, cuts: Iterable[Part], *, stack: str | None = None
) -> Iterator[None]:
    """Within this context `model.module` runs without the given parts.

    Raises:
        InputError: there is no such layer, head or norm.
    """
    running = model.running
    tower = running.checkpoint.stack(stack)
    chosen = list(cuts)
    for cut in chosen:
        if cut.layer != FINAL and not 0 <= cut.layer < tower.n_layers:
            raise InputError(
                f"there is no layer {cut.layer}; layers are 0 to {tower.n_layers - 1}."
            )
    whole = {c.layer for c in chosen if c.kind in {PartKind.ATTENTION, PartKind.LAYER}}
    heads = {(c.layer, c.head) for c in chosen if c.head is not None}
    heads |= {(layer, h) for layer in whole for h in range(tower.layers[layer].n_heads)}
    scissors = _Scissors(running, tower)
    with ExitStack() as kept:
        kept.enter_context(without_heads(running, sorted(heads), stack=tower.name))
        for cut in (c for c in chosen if c.kind is PartKind.NORM):
            kept.enter_context(scissors.norm(cut))
        kept.enter_context(scissors.silenced(whole))
        kept.enter_context(scissors.bypassed({c.layer for c in chosen if c.kind is PartKind.MLP}))
        kept.enter_context(scissors.skipped({c.layer for c in chosen if c.kind is PartKind.LAYER}))
        yield


class _Scissors:
    """Hooks on the modules of one stack."""

    def __init__(self, model: Model, stack: Stack) -> None:
        self.stack, self.width = stack, stack.d_model
        self.modules: dict[str, Any] = dict(model.module.named_modules())
        self.layers = layer_modules(model.module, model.checkpoint, stack)

    def turns(self, layers: set[int]) -> Iterator[tuple[LayerModules, Iterator[bool]]]:
        """Yield the modules of cut layers, and whether each call of them is cut."""
        for names in dict.fromkeys(self.layers[layer] for layer in sorted(layers)):
            calls = [k for k, each in enumerate(self.layers) if each == names]
            yield names, itertools.cycle([k in layers for k in calls])

    @contextmanager
    def silenced(self, layers: set[int]) -> Iterator[None]:
        """Let attention add nothing, its bias included."""
        with _removed() as handles:
            for names, turn in self.turns(layers):
                module = self.modules[names.output_norm or names.output]
                handles.append(module.register_forward_hook(_zero(turn)))
            yield

    @contextmanager
    def skipped(self, layers: set[int]) -> Iterator[None]:
        """Let the stream that entered a block leave it."""
        with _removed() as handles:
            for names, turn in self.turns(layers):
                handles += _detour(self.modules[names.block], lambda seen: seen["before"], turn)
            yield

    @contextmanager
    def bypassed(self, layers: set[int]) -> Iterator[None]:
        """Let the stream that left attention go on as it is."""
        with _removed() as handles:
            for names, turn in self.turns(layers):
                if names.post_norms is not None:
                    first, second = (self.modules[name] for name in names.post_norms)
                    handles += _around(first, second, turn)
                    continue
                added = self.modules[names.output_norm or names.output]
                handles += _detour(self.modules[names.block], _attended, turn, added=added)
            yield

    @contextmanager
    def norm(self, cut: Part) -> Iterator[None]:
        """Let a norm divide all tokens by one number."""
        known = norm_modules(self.modules, self.layers, self.width)
        name = known.get(cut.layer, {}).get(cut.norm)
        if name is None:
            where = "behind the last layer" if cut.layer == FINAL else f"in layer {cut.layer}"
            found = ", ".join(known.get(cut.layer, {})) or "none"
            raise InputError(f"there is no norm {cut.norm!r} {where}; there is: {found}.")
        with _removed() as handles:
            handles.append(self.modules[name].register_forward_hook(_one_length))
            yield


def norms_of(model: Model, *, stack: str | None = None) -> dict[int, tuple[str, ...]]:
    """Return the norms that can be cut, by layer; the one behind the last layer is in FINAL."""
    running = model.running
    tower = running.checkpoint.stack(stack)
    layers = layer_modules(running.module, running.checkpoint, tower)
    found = norm_modules(dict(running.module.named_modules()), layers, tower.d_model)
    shared = len(set(layers)) < len(layers)  # one module for several layers: not one layer's norm
    return {k: tuple(v) for k, v in found.items() if not shared or k == FINAL}


def norm_modules(
    modules: dict[str, Any], layers: Sequence[LayerModules], width: int
) -> dict[int, dict[str, str]]:
    """Return the full names of norms on the stream, by layer and by their name within it."""
    blocks = {names.block: layer for layer, names in enumerate(layers)}
    found: dict[int, dict[str, str]] = {}
    for name, module in modules.items():
        weight = getattr(module, "weight", None)
        if "norm" not in type(module).__name__.lower() or tuple(getattr(weight, "shape", ())) != (
            width,
        ):
            continue
        inside = [block for block in blocks if name.startswith(f"{block}.")]
        if inside:
            found.setdefault(blocks[inside[0]], {})[name.removeprefix(f"{inside[0]}.")] = name
        elif "embed" not in name.lower():
            found[FINAL] = {"": name}  # the last one named
    return found


# --- hooks -----------------------------------------------------------------------------------

Handles = list[Any]
Detour = Callable[[dict[str, Tensor]], Tensor]


@contextmanager
def _removed() -> Iterator[Handles]:
    handles: Handles = []
    try:
        yield handles
    finally:
        for handle in handles:
            handle.remove()


def _zero(turn: Iterator[bool]) -> Callable[..., Tensor]:
    def hook(module: object, args: object, output: Tensor) -> Tensor:
        return torch.zeros_like(output) if next(turn) else output

    return hook


def _attended(seen: dict[str, Tensor]) -> Tensor:
    return seen["before"] + seen["added"].reshape(seen["before"].shape)


def _detour(block: Any, way: Detour, turn: Iterator[bool], *, added: Any = None) -> Handles:  # noqa: ANN401
    """Let a block return something else than what it computes: what `way` makes of its states."""
    seen: dict[str, Tensor] = {}

    def enter(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen["before"] = args[0] if args else kwargs["hidden_states"]

    def note(module: object, args: object, output: Tensor) -> None:
        seen["added"] = output

    def leave(module: object, args: object, output: Any) -> Any:  # noqa: ANN401
        if not next(turn):
            return output
        return (way(seen), *output[1:]) if isinstance(output, tuple) else way(seen)

    handles = [block.register_forward_pre_hook(enter, with_kwargs=True)]
    if added is not None:
        handles.append(added.register_forward_hook(note))
    return [*handles, block.register_forward_hook(leave)]


def _around(first: Any, second: Any, turn: Iterator[bool]) -> Handles:  # noqa: ANN401
    """Let what leaves the first norm of a post-norm layer enter the second."""
    seen: dict[str, Tensor] = {}

    def note(module: object, args: object, output: Tensor) -> None:
        seen["normed"] = output

    def enter(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        return (seen["normed"].reshape(args[0].shape), *args[1:]) if next(turn) else None

    return [first.register_forward_hook(note), second.register_forward_pre_hook(enter)]


def _one_length(module: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:  # noqa: ANN401
    x = args[0]
    if isinstance(module, torch.nn.LayerNorm):  # not by its name: T5's is an RMSNorm
        x = x - x.mean(dim=-1, keepdim=True)
    lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    shift = getattr(module, "bias", None)
    plain = output if shift is None else output - shift
    scaled = plain * (lengths / lengths.mean(dim=-2, keepdim=True))
    return scaled if shift is None else scaled + shift
