"""Checkpoint: an architecture and where its numbers are; `load.py` makes one."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from orbitlens.checkpoint.hub import HubModel, fetched
from orbitlens.checkpoint.source import ForesightedSource, TensorSource
from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import Architecture, Stack


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An architecture and the file that holds its numbers; no weight is in memory yet."""

    path: str
    architecture: Architecture
    source: TensorSource
    config: Mapping[str, Any]
    remote: HubModel | None = None  # where it is read from afar

    @cached_property
    def local_path(self) -> str:
        """The folder or file on this machine; a model that lies on the hub is fetched whole.

        Raises:
            CheckpointError: the hub does not give it.
        """
        return self.path if self.remote is None else str(fetched(self.remote.place))

    @property
    def n_bytes(self) -> int:
        """Size of all tensors in the files, from the headers alone."""
        return sum(info.n_bytes for info in self.source.tensors.values())

    @property
    def n_parameters(self) -> int:
        """Number of stored scalars, from the headers alone."""
        total = 0
        for info in self.source.tensors.values():
            count = 1
            for size in info.shape:
                count *= size
            total += count
        return total

    def stack(self, name: str | None = None) -> Stack:
        """Return the stack called `name`, or the only one there is."""
        stacks = self.architecture.stacks
        if name is None and len(stacks) == 1:
            return stacks[0]
        for stack in stacks:
            if stack.name == name:
                return stack
        known = ", ".join(stack.name for stack in stacks)
        raise CheckpointError(f"{self.path}: no stack named {name!r}; this model has: {known}.")

    def expecting(self, names: Sequence[str]) -> AbstractContextManager[object]:
        """Say which tensors are read within, so that neighbours are fetched together."""
        if isinstance(self.source, ForesightedSource):
            return self.source.expecting(names)
        return nullcontext()

    def read(self, name: str) -> Tensor:
        """Read one tensor by its name in the file."""
        return self.source.read(name)
