"""Checkpoint: an architecture and where its numbers are; `load.py` makes one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from orbitlens.checkpoint.source import TensorSource
from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import Architecture, Stack


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """An architecture and the file that holds its numbers; no weight is in memory yet."""

    path: str
    architecture: Architecture
    source: TensorSource
    config: Mapping[str, Any]

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

    def read(self, name: str) -> Tensor:
        """Read one tensor by its name in the file."""
        return self.source.read(name)
