"""A model that runs without some of its parts, from any layer on.

Enters: a `Model`. Leaves: a `Trunk`. What it means that a part is out says `running/removal.py`.

Runs that differ from layer l on share all before it: blocks below l are not computed, and block l
is given the state that a first run left there. So L layers, each taken out by itself, cost about
half of L runs.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.running.capture import LayerModules, layer_modules
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.running.removal import Part, PartKind, without_parts

KINDS = (PartKind.LAYER, PartKind.ATTENTION, PartKind.MLP, PartKind.HEAD)  # that are tried


def parts_of(stack: Stack, kinds: Sequence[PartKind]) -> Iterator[Part]:
    """Yield every part of some kinds, kind by kind."""
    for kind in kinds:
        for layer, spec in enumerate(stack.layers):
            if kind is PartKind.HEAD:
                for head in range(spec.n_heads):
                    yield Part(kind=kind, layer=layer, head=head)
            else:
                yield Part(kind=kind, layer=layer)


@dataclass(frozen=True, kw_only=True)
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
        self._run, self._layer = _Run(), 0

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
        handles: list[Any] = []
        try:
            for name in dict.fromkeys(layer.block for layer in self.names):
                block = self.modules[name]
                # Before the hooks of cuts, which are to see the state that a run starts from.
                enter = partial(self._enter, name)
                handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
                block.forward = partial(self._pass, name, block.forward)
                changed.append(block)
            with self.model.evaluating():
                yield
        finally:
            for block in changed:
                del block.forward
            for handle in handles:
                handle.remove()

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
            return self._call(batch, replace(run, removed=removed | {part.layer}))
        if self.is_shared:  # a cut counts the calls of a shared module, so all of them are made
            run = _Run(removed=removed)
        with without_parts(self.model, [part]):
            return self._call(batch, run)

    def _call(self, batch: Batch, run: _Run) -> Any:  # noqa: ANN401
        self._run = run
        self._turns = {
            name: itertools.cycle([k for k, layer in enumerate(self.names) if layer.block == name])
            for name in {layer.block for layer in self.names}
        }
        device = input_device(self.model.module)
        inputs = {name: value.to(device) for name, value in batch.items()}
        cache = {"use_cache": False} if self.model.main_input == "input_ids" else {}
        return self.model.module(**inputs, **cache)

    def _enter(
        self, name: str, module: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Give the block that a run starts at its state; note which layer is called."""
        run = self._run
        self._layer = next(self._turns[name])
        hidden = args[0] if args else kwargs["hidden_states"]
        if self._layer == run.start and run.state is not None:
            hidden = run.state
        if run.kept is not None:
            run.kept.append(hidden)
        if args:
            return (hidden, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": hidden}

    def _pass(self, name: str, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        """Run a block, or hand on what it was given."""
        run, layer = self._run, self._layer
        if layer < run.start or layer in run.removed:
            hidden = args[0] if args else kwargs["hidden_states"]
            n_outputs = self._n_outputs[name]
            return (hidden, *(None,) * (n_outputs - 1)) if n_outputs else hidden
        output = forward(*args, **kwargs)
        self._n_outputs[name] = len(output) if isinstance(output, tuple) else 0
        if run.kept is not None and layer == self.n_layers - 1:
            run.kept.append(output[0] if isinstance(output, tuple) else output)
        return output
