"""A module in training, opened for readings: its layers by name, and how to run it unnoticed.

Enters: a live module, also inside wrappers of parallel training. Leaves: its attention layers as
they are now, one at a time, and the states of a small batch. Random numbers, modes, gradients and
buffers of the training loop are left as they were. Several processes: only the first one measures;
where weights are sharded all of them gather one layer after another, since that takes all.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from orbitlens.checkpoint.live import LiveSource, checkpoint_of_module, unwrapped
from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.heads.layers import AttentionLayer, load_layer
from orbitlens.running.capture import LayerStates, capturing, layer_modules
from orbitlens.running.inputs import Batch, n_positions
from orbitlens.running.model import Model
from orbitlens.running.neighbours import inside
from orbitlens.tracing.collector import on_device, with_decoder_inputs
from orbitlens.watching.token_measures import LayerSums, layer_sums
from orbitlens.watching.watch_reading import WatchedLayer

Place = tuple[str, int]
DEFAULT_TOKENS = 128  # of a context, where nothing says how long contexts are
INPUTS = (  # what a batch may hold that a run of a model needs; labels and the like are left out
    "input_ids",
    "attention_mask",
    "token_type_ids",
    "position_ids",
    "decoder_input_ids",
    "decoder_attention_mask",
    "pixel_values",
    "input_features",
    "inputs_embeds",
)


class WatchedModule:
    """A module that is watched, or the files of one, and where its layers are."""

    def __init__(self, model: Model, *, is_sharded: bool = False) -> None:
        """Find the attention layers.

        Raises:
            CheckpointError: its heads cannot be read.
        """
        self.model, self.is_sharded = model, is_sharded
        self.checkpoint = model.checkpoint
        self.places: list[tuple[Stack, int]] = [
            (stack, index)
            for stack in self.checkpoint.architecture.stacks
            for index in range(stack.n_layers)
        ]
        self.names: list[Place] = [(stack.name, index) for stack, index in self.places]
        self._check()

    @classmethod
    def live(cls, module: Any) -> "WatchedModule":  # noqa: ANN401 - whatever a training loop has
        """Return a module in training.

        Raises:
            InputError: this is no module that can be read.
            UnknownFamilyError: no family describes it.
            CheckpointError: its heads cannot be read, or its modules are not where they should be.
        """
        wrapped = inside(module)
        if not isinstance(wrapped.module, nn.Module):
            raise InputError(
                f"Watch was given a {type(module).__name__}; expected a live module of "
                "transformers or of the lab."
            )
        _refuse_flat_shards(wrapped.module)
        core = readable(wrapped.module)
        is_sharded = any(hasattr(p, "full_tensor") for p in core.parameters())
        checkpoint = checkpoint_of_module(core, view=wrapped.view, in_place=True)
        return cls(Model(checkpoint, module=core), is_sharded=is_sharded)

    def _check(self) -> None:
        """Meet now what would go wrong at the first reading, and at the first with tokens."""
        for stack in self.checkpoint.architecture.stacks:
            if self.model.is_live:
                layer_modules(self.core, self.checkpoint, stack)
            if stack.refusal is not None:
                load_layer(self.checkpoint, 0, stack=stack.name)  # says why

    @property
    def core(self) -> Any:  # noqa: ANN401 - a model of transformers
        """The module that runs; that of files is built when first asked for."""
        return self.model.module

    @property
    def layers(self) -> tuple[WatchedLayer, ...]:
        """The layers, in the order of rows of a reading."""
        return tuple(
            WatchedLayer(
                stack=stack.name,
                number=stack.layers[index].number,
                n_heads=stack.layers[index].n_heads,
            )
            for stack, index in self.places
        )

    @property
    def usual_tokens(self) -> int:
        """How many tokens a context has, by the config."""
        return n_positions(SimpleNamespace(**self.checkpoint.config)) or DEFAULT_TOKENS

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.core.parameters()).device if self.model.is_live else torch.device("cpu")

    @contextmanager
    def reading(self) -> Iterator[Callable[[Stack, int], AttentionLayer]]:
        """Yield a function that reads one layer as it is now.

        It raises NotFiniteError where weights are NaN or infinite.
        """
        source, device = self.checkpoint.source, self.device
        held = source.held() if isinstance(source, LiveSource) else nullcontext()
        with torch.no_grad(), held:
            yield lambda stack, index: load_layer(
                self.checkpoint, index, stack=stack.name, device=device
            )

    def run(self, batch: Any, *, measured: bool) -> dict[Place, LayerSums | None]:  # noqa: ANN401
        """Run a small batch and return what every layer did; nothing where it is not measured.

        None stands for states that are not finite.
        """
        inputs = with_decoder_inputs(self.core, on_device(self.inputs_of(batch), self.device))
        alone = len(self.checkpoint.architecture.stacks) == 1
        real = inputs.get("attention_mask")
        kept = None if real is None or real.ndim != 2 else real.bool()
        found: dict[Place, LayerSums | None] = {}

        def sink(stack: Stack, layer: int, states: LayerStates) -> None:
            if measured:
                mask = kept if alone or stack.name == "encoder" else None
                finite = bool(states.after.isfinite().all())
                sums = layer_sums(stack, layer, states, mask) if finite else None
                found[stack.name, layer] = sums

        with self._unnoticed() as core, capturing(core, self.checkpoint, sink):
            core(**inputs)
        return found

    @contextmanager
    def _unnoticed(self) -> Iterator[Any]:
        """Yield the module in evaluation mode; random numbers and modes are put back after."""
        device = self.device
        others = [] if device.type == "cpu" else [device]
        kind = {"device_type": device.type} if others else {}
        with (
            torch.random.fork_rng(devices=others, **kind),
            torch.autocast(device.type, enabled=False),
            self.model.evaluating() as core,
        ):
            yield core

    def inputs_of(self, batch: Any) -> Batch:  # noqa: ANN401 - whatever a training loop has
        """Return what a run needs of a training batch.

        Raises:
            InputError: it holds no input of this model.
        """
        main = str(getattr(self.core, "main_input_name", "input_ids"))
        if isinstance(batch, Tensor):
            return {main: batch}
        if not isinstance(batch, Mapping) or main not in batch:
            held = (
                ", ".join(map(str, batch)) if isinstance(batch, Mapping) else type(batch).__name__
            )
            raise InputError(
                f"the batch has no {main!r} (it holds: {held}). Give Watch a mapping with the "
                f"model's inputs, or their tensor alone."
            )
        return {name: batch[name] for name in INPUTS if isinstance(batch.get(name), Tensor)}


def readable(module: nn.Module) -> Any:  # noqa: ANN401 - a model of transformers
    """Return the model inside wrappers: itself, or the only outermost part that has a config."""
    core = unwrapped(module)
    if _has_config(core):
        return core
    found: list[tuple[str, nn.Module]] = []
    for name, part in core.named_modules():
        if _has_config(part) and not any(name.startswith(f"{outer}.") for outer, _ in found):
            found.append((name, part))
    return found[0][1] if len(found) == 1 else core  # which is then refused


def _has_config(module: nn.Module) -> bool:
    return hasattr(getattr(module, "config", None), "to_json_string")


def is_first_process() -> bool:
    """Say whether this process is the one that measures and writes."""
    from torch import distributed

    ready = distributed.is_available() and distributed.is_initialized()
    return not ready or distributed.get_rank() == 0


def _refuse_flat_shards(module: nn.Module) -> None:
    """Refuse shards that are not tensors of their own: gathering them here would stall the run.

    Raises:
        InputError: the module is sharded by version 1 of FSDP.
    """
    if any(type(part).__name__ == "FullyShardedDataParallel" for part in module.modules()):
        raise InputError(
            "this module is sharded by FSDP's first version (FullyShardedDataParallel), whose "
            "weights are pieces of one flat tensor. Watch reads its second version: fully_shard, "
            "or fsdp_version: 2 in Accelerate."
        )


def agreed(said: bool) -> bool:
    """Return in every process what the first one says; all of them must ask."""
    from torch import distributed

    if not (distributed.is_available() and distributed.is_initialized()):
        return said
    told = [said]
    distributed.broadcast_object_list(told, src=0)
    return told[0]
