"""What every kind of weight file offers: names, shapes, and one tensor at a time.

Enters: nothing. Leaves: the `TensorSource` protocol that the safetensors, GGUF and pickle readers
implement, so that nothing above this folder knows which kind of file the weights came from.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """What a file's header says about one tensor, before any of its data is read."""

    shape: tuple[int, ...]
    dtype: str  # as the file spells it: "F32", "BF16", "F8_E4M3", "Q4_K", ...
    n_bytes: int  # size in the file


@runtime_checkable
class TensorSource(Protocol):
    """Tensors by name, read one at a time; opening a source reads headers only."""

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description, from the headers alone."""
        ...

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of each file's header, by file name: it pins names, shapes, types and offsets."""
        ...

    def read(self, name: str) -> Tensor:
        """Return one tensor on the CPU, in a torch floating type; `name` is a key of `tensors`.

        Raises:
            CheckpointError: the data is missing or broken.
        """
        ...


@runtime_checkable
class ForesightedSource(TensorSource, Protocol):
    """A source that reads better if it knows what comes."""

    def expecting(self, names: Sequence[str]) -> AbstractContextManager[object]:
        """Be told which tensors are read within."""
        ...
