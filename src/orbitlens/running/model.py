"""Model: a checkpoint, the module that runs, its tokenizer and its layers, each opened once.

Enters: a path, a GGUF file, a name of the hub or the zoo, or a live torch module. Leaves: a `Model`
that every verb takes. Opening reads headers; weights are read, and the running module is built,
when something first needs them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from orbitlens.checkpoint.live import checkpoint_of_module, unwrapped
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import CheckpointError, InputError
from orbitlens.families.architecture import Architecture
from orbitlens.families.feed import Feed
from orbitlens.families.registry import feed_of
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer, load_layer
from orbitlens.running.gguf_models import has_tokenizer, why_not_runnable
from orbitlens.running.info import display_name
from orbitlens.running.loading import build_module, drawn_anew, fresh_module, load_tokenizer
from orbitlens.running.neighbours import inside
from orbitlens.running.products import fast_products

KEPT_BYTES = 512_000_000  # attention weights up to this size stay in memory once they are read


class Model:
    """A model opened once, for every verb; made by `load`."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        *,
        module: Any = None,  # noqa: ANN401 - a torch module
        tokenizer: Any = None,  # noqa: ANN401 - a tokenizer of transformers
        dtype: torch.dtype = torch.float32,
        allow_pickle: bool = False,
    ) -> None:
        """Take an opened checkpoint, and the live module it describes where there is one."""
        self.checkpoint = checkpoint
        self.is_live = module is not None
        self.dtype, self.allow_pickle = dtype, allow_pickle
        self._given_module, self._given_tokenizer = module, tokenizer
        self._origin: Model | None = None  # the model of a GGUF file, whose running form this is
        self._layers: dict[tuple[str, int, str], AttentionLayer] = {}

    def __repr__(self) -> str:
        """Name the model and its size in a line."""
        stacks = ", ".join(
            f"{stack.n_layers} layers x {stack.layers[0].n_heads} heads"
            for stack in self.architecture.stacks
        )
        return f"Model({self.name}: {self.architecture.family}, {stacks})"

    @property
    def architecture(self) -> Architecture:
        """What the model is, as far as self-attention goes."""
        return self.checkpoint.architecture

    @property
    def name(self) -> str:
        """What titles call the model."""
        return display_name(self.checkpoint)

    @property
    def n_parameters(self) -> int:
        """Number of stored scalars, from the headers alone."""
        return self.checkpoint.n_parameters

    @cached_property
    def module(self) -> Any:  # noqa: ANN401 - a torch module
        """The model that runs: the live one, or built by transformers when first asked for.

        Raises:
            CheckpointError: transformers cannot build it from these files.
            MissingPackageError: transformers is not installed.
        """
        if self._given_module is not None:
            return self._given_module
        refusal = why_not_runnable(self.checkpoint) if self.is_gguf else None
        if refusal is not None:
            raise CheckpointError(f"{self.checkpoint.path}: {refusal}")
        return build_module(
            self.checkpoint.local_path, dtype=self.dtype, allow_pickle=self.allow_pickle
        )

    @cached_property
    def tokenizer(self) -> Any | None:  # noqa: ANN401 - a tokenizer of transformers
        """The tokenizer given or found beside the weights; None where there is none."""
        if self._origin is not None:
            return self._origin.tokenizer
        if self._given_tokenizer is not None or self.is_live:
            return self._given_tokenizer
        if not has_tokenizer(self.checkpoint):
            return None
        return load_tokenizer(self.checkpoint.local_path)

    @property
    def main_input(self) -> str:
        """Name of what the module reads: "input_ids", "pixel_values" or "input_features"."""
        return str(getattr(self.module, "main_input_name", "input_ids"))

    @cached_property
    def feed(self) -> Feed:
        """How the module takes positions and masks.

        Raises:
            UnknownFamilyError: nothing is known about how the family is fed.
        """
        return feed_of(self.module.config)

    @property
    def is_gguf(self) -> bool:
        """Whether the weights are in a GGUF file, under names of its own."""
        return not self.is_live and self.checkpoint.path.endswith(".gguf")

    @property
    def notes(self) -> tuple[str, ...]:
        """What results say of how the module came about."""
        if not self.is_gguf:
            return ()
        return ("the model was built from the GGUF file by transformers, its weights unpacked",)

    @cached_property
    def running(self) -> "Model":
        """The model under the names its running module has: itself, but for a GGUF file.

        transformers builds the module of a GGUF file with unpacked weights; hooks go by its names.
        """
        if not self.is_gguf:
            return self
        checkpoint = checkpoint_of_module(self.module, name=self.checkpoint.path)
        running = Model(checkpoint, module=self.module)
        running._origin = self  # its tokenizer is read when it is needed: ids need none
        return running

    def layer(
        self,
        index: int,
        *,
        stack: str | None = None,
        device: torch.device | str = "cpu",
    ) -> AttentionLayer:
        """Return one layer's attention weights, read once where all layers fit in memory.

        Those of a live module are read anew each time, since training may have moved them.
        """
        key = (self.checkpoint.stack(stack).name, index, str(device))
        if key in self._layers:
            return self._layers[key]
        layer = load_layer(self.checkpoint, index, stack=stack, device=device)
        if not self.is_live and self._attention_bytes <= KEPT_BYTES:
            self._layers[key] = layer
        return layer

    def layers(self) -> Iterator[AttentionLayer]:
        """Yield every layer of every stack."""
        for stack in self.architecture.stacks:
            for index in range(stack.n_layers):
                yield self.layer(index, stack=stack.name)

    def head(self, layer: int, head: int, *, stack: str | None = None) -> Head:
        """Return one head as float64 factors.

        Raises:
            InputError: there is no such layer or head.
        """
        loaded = self.layer(layer, stack=stack)
        if not 0 <= head < loaded.n_heads:
            raise InputError(
                f"{self.name}: there is no head {head}; layer {layer} has heads 0 to "
                f"{loaded.n_heads - 1}."
            )
        return loaded.head(head)

    def twin(self, seed: int = 0) -> "Model":
        """Return an untrained model of the same config: the control for what training did."""
        if self.is_live or self.is_gguf:
            module = drawn_anew(type(self.module), _copied(self.module.config), seed=seed)
        else:
            module = fresh_module(self.checkpoint.local_path, seed=seed)
        return Model(checkpoint_of_module(module), module=module, tokenizer=self.tokenizer)

    def explore(self, text: str | None = None) -> Any:  # noqa: ANN401 - an `Explorer`, of a layer above
        """Return the model's explorer, which a notebook shows as a page: `ol.explore(model)`."""
        from orbitlens.exploring.api import explore

        return explore(self, text)

    @contextmanager
    def evaluating(self) -> Iterator[Any]:
        """Yield the module in evaluation mode, without gradients; modes are put back after."""
        modes = {name: part.training for name, part in self.module.named_modules()}
        self.module.eval()
        try:
            with torch.no_grad(), fast_products(self.n_parameters):
                yield self.module
        finally:
            for name, part in self.module.named_modules():
                part.training = modes.get(name, False)

    @cached_property
    def _attention_bytes(self) -> int:
        names = {
            name
            for stack in self.architecture.stacks
            for tensors in stack.tensors
            for name in tensors.values()
        }
        return sum(self.checkpoint.source.tensors[name].n_bytes for name in names)


def load(
    model: Any,  # noqa: ANN401 - see below
    *,
    tokenizer: Any = None,  # noqa: ANN401 - a tokenizer of transformers
    dtype: torch.dtype = torch.float32,
    allow_pickle: bool = False,
) -> Model:
    """Open a model; headers only, the rest when it is needed.

    Args:
        model: a folder in Hugging Face layout, a `.gguf` file, a name of the zoo or the hub
            (`owner/model@revision`, `hf://owner/model/file.gguf`; read there by ranges, and fetched
            whole only to be run), or a live module of transformers, whose weights are read in
            place, also with LoRA adapters of PEFT or inside a model of nnsight. A `Model` is
            returned as it is.
        tokenizer: for live modules, or in place of the one beside the weights.
        dtype: in which files are run; a live module keeps its own.
        allow_pickle: read `.bin` files, as plain tensors, where there is nothing better.

    Raises:
        CheckpointError: the files are missing, broken, or do not fit together.
        UnknownFamilyError: the model is of no family that is known.
        InputError: `model` is of another kind.
    """
    if isinstance(model, Model):
        return model
    if isinstance(model, Checkpoint):
        return Model(model, tokenizer=tokenizer, dtype=dtype, allow_pickle=allow_pickle)
    if isinstance(model, (str, Path)):
        checkpoint = load_checkpoint(model, allow_pickle=allow_pickle)
        return Model(checkpoint, tokenizer=tokenizer, dtype=dtype, allow_pickle=allow_pickle)
    wrapped = inside(model)
    if isinstance(wrapped.module, torch.nn.Module):
        return Model(
            checkpoint_of_module(wrapped.module, view=wrapped.view),
            module=unwrapped(wrapped.module),
            tokenizer=tokenizer if tokenizer is not None else wrapped.tokenizer,
        )
    raise InputError(
        f"a model was given as {type(model).__name__}; expected a path, a name, or a live module "
        "of transformers."
    )


def _copied(config: Any) -> Any:  # noqa: ANN401 - a config of transformers
    return type(config).from_dict(config.to_dict())
