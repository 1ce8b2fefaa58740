"""Hidden states of a running model, layer by layer, by forward hooks that change nothing.

Enters: a transformers model and the checkpoint it was built from. Leaves: for every layer of every
stack, as soon as the layer is done, the `LayerStates` around its attention, MLP and norms; nothing
is kept. A layer's states, in the order in which they arise:

    pre-norm    before -> before + attention -> after
    parallel    before -> before + attention + mlp = after
    post-norm   before -> before + attention -> norm -> + mlp -> norm = after

`before` of layer l is transformers' hidden_states[l]. Its hidden_states[-1] is the last layer's
`after`, except where the model has a norm behind its last layer (all pre-norm decoders, T5, ViT
without its head): there transformers stores that norm's output, and `after` is what enters it.
"""

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import Stack
from orbitlens.families.family import Hooks
from orbitlens.families.registry import FAMILIES

BatchTokens = Float[Tensor, "batch tokens d_model"]


@dataclass(frozen=True, kw_only=True)
class LayerStates:
    """What one layer saw and did in one batch."""

    before: BatchTokens  # the residual stream that enters the layer
    mixed: Float[Tensor, "batch tokens heads_width"]  # heads side by side, before the output map
    projected: BatchTokens  # of the output map: what all heads write, the bias included
    attention: BatchTokens  # what attention adds: `projected`, through a norm where there is one
    after: BatchTokens  # the residual stream that leaves the layer
    normed: BatchTokens | None  # post-norm: the stream after the norm that follows attention
    unnormed: BatchTokens | None  # post-norm: the stream before the layer's last norm


@dataclass(frozen=True, kw_only=True)
class LayerModules:
    """Names of one layer's modules."""

    block: str
    output: str  # the output map of attention
    output_norm: str | None
    post_norms: tuple[str, str] | None


Sink = Callable[[Stack, int, LayerStates], None]


def is_post_norm(stack: Stack) -> bool:
    """Say whether norms sit on the residual stream itself, after attention and MLP."""
    return stack.norm is None and not stack.output_norm


def layer_modules(model: Any, checkpoint: Checkpoint, stack: Stack) -> list[LayerModules]:  # noqa: ANN401
    """Return the names of the modules of every layer of a stack; shared ones appear repeatedly."""
    names = {name for name, _ in model.named_modules()}
    hooks = FAMILIES[checkpoint.architecture.family].hooks
    layers = []
    for tensors in stack.tensors:
        output = _module_name(tensors["o"], names, hooks)
        block = block_name(output, hooks)
        norm = tensors.get("output_norm")
        post = hooks.post_norms if is_post_norm(stack) else None
        layers.append(
            LayerModules(
                block=block,
                output=output,
                output_norm=_module_name(norm, names, hooks) if norm else None,
                post_norms=(f"{block}.{post[0]}", f"{block}.{post[1]}") if post else None,
            )
        )
    return layers


def _module_name(tensor: str, names: set[str], hooks: Hooks) -> str:
    """Return the module that holds a tensor: a file may have a prefix more or less than a model."""
    path = tensor.removesuffix(".weight")
    for old, new in hooks.renamed:
        path = path.replace(old, new)
    if path in names:
        return path
    parts = path.split(".")
    shorter = [".".join(parts[k:]) for k in range(1, len(parts)) if not parts[k].isdigit()]
    longer = [name for name in names if name.endswith("." + path)]
    for name in longer + [name for name in shorter[:2] if name in names]:
        return name
    raise CheckpointError(
        f"the model has no module for the tensor {tensor!r}. The file and the model class of "
        "config.json do not fit together."
    )


def block_name(output: str, hooks: Hooks) -> str:
    """Return the layer that holds the output map: all up to its number."""
    greedy = "*?" if hooks.first_number else "*"
    match = re.match(rf"(.{greedy}\.\d+)\.", "." + output)
    if match is None:
        raise CheckpointError(f"the module {output!r} is not inside a numbered layer.")
    return match.group(1)[1:]


class _Recorder:
    """Collects one layer's states from its hooks; hands them on when the layer is done."""

    def __init__(self, stack: Stack, modules: list[LayerModules], sink: Sink) -> None:
        self.stack, self.modules, self.sink = stack, modules, sink
        self.layer = 0  # layers are called in order, shared ones several times
        self.seen: dict[str, Tensor] = {}

    def enter(self, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.seen = {"before": args[0] if args else kwargs["hidden_states"]}

    def note_input(self, key: str) -> Callable[..., None]:
        def hook(module: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.seen[key] = args[0] if args else next(iter(kwargs.values()))

        return hook

    def note_output(self, key: str) -> Callable[..., None]:
        def hook(module: object, args: tuple[Any, ...], output: Tensor) -> None:
            self.seen[key] = output

        return hook

    def leave(self, module: object, args: object, output: Tensor | tuple[Any, ...]) -> None:
        seen, layer = self.seen, self.layer
        after = output[0] if isinstance(output, tuple) else output
        self.seen, self.layer = {}, (layer + 1) % self.stack.n_layers
        shape = seen["before"].shape

        def shaped(x: Tensor) -> Tensor:  # some families flatten the batch inside a layer
            return x.reshape(*shape[:-1], x.shape[-1])

        projected = shaped(seen["projected"])
        states = LayerStates(
            before=seen["before"],
            mixed=_padded_heads(shaped(seen["mixed"]), self.stack, layer),
            projected=projected,
            attention=shaped(seen["output_normed"]) if "output_normed" in seen else projected,
            after=after,
            normed=shaped(seen["normed"]) if "normed" in seen else None,
            unnormed=shaped(seen["unnormed"]) if "unnormed" in seen else None,
        )
        self.sink(self.stack, layer, states)


def _padded_heads(mixed: Tensor, stack: Stack, layer: int) -> Tensor:
    """Return heads side by side, each widened with zeros where its values are narrower than it."""
    n_heads = stack.layers[layer].n_heads
    if mixed.shape[-1] == n_heads * stack.d_head:
        return mixed
    heads = mixed.unflatten(-1, (n_heads, -1))
    return functional.pad(heads, (0, stack.d_head - heads.shape[-1])).flatten(-2)


def few_logits(model: Any) -> dict[str, int]:  # noqa: ANN401 - a model of transformers
    """Return the argument with which a run for its states works out the last token's logits alone.

    Empty where the model has no such argument. Of a model of 135M parameters a fifth of a run
    would go into logits that nobody reads.
    """
    takes = "logits_to_keep" in inspect.signature(type(model).forward).parameters
    return {"logits_to_keep": 1} if takes else {}


@contextmanager
def capturing(model: Any, checkpoint: Checkpoint, sink: Sink) -> Iterator[None]:  # noqa: ANN401
    """Within this context every run of `model` hands each layer's states to `sink`."""
    modules = dict(model.named_modules())
    handles: list[Any] = []
    try:
        for stack in checkpoint.architecture.stacks:
            names = layer_modules(model, checkpoint, stack)
            recorder = _Recorder(stack, names, sink)
            for layer in dict.fromkeys(names):
                handles += _hooks(modules, layer, recorder)
        yield
    finally:
        for handle in handles:
            handle.remove()


def _hooks(modules: Mapping[str, Any], layer: LayerModules, recorder: _Recorder) -> Iterator[Any]:
    block, output = modules[layer.block], modules[layer.output]
    yield block.register_forward_pre_hook(recorder.enter, with_kwargs=True)
    yield output.register_forward_pre_hook(recorder.note_input("mixed"), with_kwargs=True)
    yield output.register_forward_hook(recorder.note_output("projected"))
    if layer.output_norm is not None:
        norm = modules[layer.output_norm]
        yield norm.register_forward_hook(recorder.note_output("output_normed"))
    if layer.post_norms is not None:
        first, second = (modules[name] for name in layer.post_norms)
        yield first.register_forward_hook(recorder.note_output("normed"))
        yield second.register_forward_pre_hook(recorder.note_input("unnormed"), with_kwargs=True)
    yield block.register_forward_hook(recorder.leave)
