"""Part: what can be taken out of a model, and the model that runs without some parts.

Enters: a `Model`. Leaves: a `Trunk`, which runs the module from any layer on. A layer that is out
hands on what it was given; attention or an MLP that is out adds nothing, and norms stay; a head
that is out is zero in front of the output map. Weights are not touched.

Runs that differ from layer l on share all before it: blocks below l are not computed, and block l
is given the state that a first run left there. So L layers, each taken out by itself, cost about
half of L runs.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch
from torch import Tensor, nn

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.running.ablation import zeroed_heads
from orbitlens.running.capture import LayerModules, is_post_norm, layer_modules
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model


class PartKind(StrEnum):
    """What kind of part."""

    LAYER = "layer"
    ATTENTION = "attention"
    MLP = "mlp"
    HEAD = "head"


@dataclass(frozen=True, kw_only=True, order=True)
class Part:
    """One part of a model."""

    kind: PartKind
    layer: int
    head: int | None = None

    def __str__(self) -> str:
        """Name it as people do."""
        if self.kind is PartKind.LAYER:
            return f"layer {self.layer}"
        if self.kind is PartKind.HEAD:
            return f"head {self.layer}.{self.head}"
        return f"{'attention' if self.kind is PartKind.ATTENTION else 'MLP'} {self.layer}"


def parts_of(stack: Stack, kinds: Sequence[PartKind]) -> Iterator[Part]:
    """Yield every part of some kinds, kind by kind."""
    for kind in kinds:
        for layer, spec in enumerate(stack.layers):
            if kind is PartKind.HEAD:
                for head in range(spec.n_heads):
                    yield Part(kind=kind, layer=layer, head=head)
            else:
                yield Part(kind=kind, layer=layer)


@dataclass
class _Run:
    """What one run of the module does at its blocks."""

    start: int = 0  # blocks before this one are passed by
    state: Tensor | None = None  # that the block at `start` is given; None: what arrives there
    removed: frozenset[int] = frozenset()  # layers that hand on what they are given
    kept: list[Tensor] | None = None  # states in front of blocks and behind the last, if wanted


class Trunk:
    """A model's module whose blocks can be passed by."""

    def __init__(self, model: Model) -> None:
        """Find the blocks.

        Raises:
            InputError: the model has two towers, or layers that do not add to a stream.
        """
        stacks = model.architecture.stacks
        if len(stacks) != 1:
            raise InputError(
                f"{model.name}: this model has an encoder and a decoder, and taking a layer out of "
                "one changes what the other is given. Give a model with one stack of layers."
            )
        if getattr(model.module.config, "residual", "all") != "all":
            raise InputError(
                f"{model.name}: some residual sums are missing, so a layer that is taken out "
                "leaves nothing to hand on."
            )
        self.model, self.stack = model, stacks[0]
        self.modules = dict(model.module.named_modules())
        self.names: list[LayerModules] = layer_modules(model.module, model.checkpoint, self.stack)
        # How many values a block returns, 0 for a bare tensor; known once it has run.
        self._n_outputs: dict[str, int] = {}
        self._run = _Run()

    @property
    def n_layers(self) -> int:
        """Number of layers, shared ones counted each time."""
        return self.stack.n_layers

    @property
    def is_shared(self) -> bool:
        """Whether several layers have one set of weights."""
        return len({name.block for name in self.names}) < self.n_layers

    @contextmanager
    def ready(self) -> Iterator[None]:
        """Have the blocks obey runs; on leaving, the module is as before."""
        changed: list[nn.Module] = []
        try:
            for name in dict.fromkeys(layer.block for layer in self.names):
                block = self.modules[name]
                block.forward = self._obeying(name, block.forward)
                changed.append(block)
            with self.model.evaluating():
                yield
        finally:
            for block in changed:
                del block.forward

    def states(
        self, batch: Batch, removed: frozenset[int] = frozenset()
    ) -> tuple[Any, list[Tensor]]:
        """Run all but some layers; return the output, and the states in front of each block.

        Behind them stands the state that leaves the last block, unless that is taken out.
        """
        kept: list[Tensor] = []
        return self._call(batch, _Run(removed=removed, kept=kept)), kept

    def without(
        self,
        batch: Batch,
        part: Part,
        states: Sequence[Tensor],
        removed: frozenset[int] = frozenset(),
    ) -> Any:  # noqa: ANN401 - an output of transformers
        """Return the output without a part and some layers; `states` are without these layers."""
        run = _Run(start=part.layer, state=states[part.layer], removed=removed)
        if part.kind is PartKind.LAYER:
            run.removed = removed | {part.layer}
            return self._call(batch, run)
        with self._branch_cut(part, run):
            return self._call(batch, run)

    def _call(self, batch: Batch, run: _Run) -> Any:  # noqa: ANN401
        self._run = run
        self._turns = {
            name: itertools.cycle([k for k, layer in enumerate(self.names) if layer.block == name])
            for name in {layer.block for layer in self.names}
        }
        device = next(self.model.module.parameters()).device
        inputs = {name: value.to(device) for name, value in batch.items()}
        cache = {"use_cache": False} if self.model.main_input == "input_ids" else {}
        return self.model.module(**inputs, **cache)

    def _obeying(self, name: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def passed_by(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - of any family
            run, layer = self._run, next(self._turns[name])
            hidden = args[0] if args else kwargs["hidden_states"]
            if layer == run.start and run.state is not None:
                hidden = run.state
                args, kwargs = _with_hidden(hidden, args, kwargs)
            if run.kept is not None:
                run.kept.append(hidden)
            if layer < run.start or layer in run.removed:
                return self._as_output(name, hidden)
            output = forward(*args, **kwargs)
            self._n_outputs[name] = len(output) if isinstance(output, tuple) else 0
            if run.kept is not None and layer == self.n_layers - 1:
                run.kept.append(output[0] if isinstance(output, tuple) else output)
            return output

        return passed_by

    def _as_output(self, name: str, hidden: Tensor) -> Any:  # noqa: ANN401
        n_outputs = self._n_outputs[name]
        return (hidden, *(None,) * (n_outputs - 1)) if n_outputs else hidden

    # --- branches ----------------------------------------------------------------------------
    # A run starts at the layer in question, so the first call of any of its modules is the one
    # that counts; a shared module is called again for the layers behind it.

    @contextmanager
    def _branch_cut(self, part: Part, run: _Run) -> Iterator[None]:
        """Take attention, the MLP or a head out of the layer that a run starts at."""
        name = self.names[part.layer]
        added = self.modules[name.output_norm or name.output]
        if part.kind is PartKind.ATTENTION:
            handles = [added.register_forward_hook(_once(_zero_output))]
        elif part.kind is PartKind.HEAD:
            output = self.modules[name.output]
            handles = [output.register_forward_pre_hook(_once(self._without_head(part)))]
        elif is_post_norm(self.stack):
            handles = self._without_post_norm_mlp(name)
        else:
            handles = self._without_mlp(name, added, run)
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _without_head(self, part: Part) -> Callable[..., Any]:
        n_heads = self.stack.layers[part.layer].n_heads

        def hook(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (zeroed_heads(args[0], [part.head or 0], n_heads), *args[1:])

        return hook

    def _without_mlp(self, name: LayerModules, added: nn.Module, run: _Run) -> list[Any]:
        """Have a layer return what entered it and what attention added."""
        seen: list[Tensor] = []

        def leave(module: object, args: object, output: Any) -> Any:  # noqa: ANN401
            if not seen:  # a block before the start, passed by
                return None
            assert run.state is not None
            sums = run.state + seen.pop().reshape(run.state.shape)
            return (sums, *output[1:]) if isinstance(output, tuple) else sums

        return [
            added.register_forward_hook(_once(lambda module, args, output: seen.append(output))),
            self.modules[name.block].register_forward_hook(leave),
        ]

    def _without_post_norm_mlp(self, name: LayerModules) -> list[Any]:
        """Hand the layer's last norm what the norm behind attention returned.

        Raises:
            InputError: it is not known where the family's norms are.
        """
        if name.post_norms is None:
            raise InputError(f"{self.model.name}: it is not known where MLPs of this family end.")
        seen: list[Tensor] = []
        first, last = (self.modules[each] for each in name.post_norms)

        def replace(module: object, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return (seen.pop().reshape(args[0].shape), *args[1:])

        return [
            first.register_forward_hook(_once(lambda module, args, output: seen.append(output))),
            last.register_forward_pre_hook(_once(replace)),
        ]


def _once(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that acts at its first call alone."""
    left = iter((True,))
    return lambda *args: hook(*args) if next(left, False) else None


def _zero_output(module: object, args: object, output: Tensor) -> Tensor:
    return torch.zeros_like(output)


def _with_hidden(
    hidden: Tensor, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if args:
        return (hidden, *args[1:]), dict(kwargs)
    return args, {**kwargs, "hidden_states": hidden}
