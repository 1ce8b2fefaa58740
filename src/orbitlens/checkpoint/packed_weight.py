"""PackedWeight: one weight that a file keeps in several tensors, and what unpacks it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor

from orbitlens.checkpoint.safetensors_file import SafetensorsSource
from orbitlens.checkpoint.source import TensorInfo
from orbitlens.errors import CheckpointError

CHUNK = 1 << 20  # numbers unpacked at a time: what unpacking needs beside the weight


@dataclass(frozen=True, kw_only=True)
class PackedWeight:
    """What a packed weight stands for, the tensors it is kept in, and how they are unpacked."""

    info: TensorInfo  # of the weight; `n_bytes` is the size of all parts
    parts: tuple[str, ...]
    unpack: Callable[[Mapping[str, Tensor]], Tensor]  # parts by name -> float32

    def read(self, source: SafetensorsSource) -> Tensor:
        """Return the weight, as float32."""
        return self.unpack({name: source.stored(name) for name in self.parts})


def of_parts(
    source: SafetensorsSource,
    shape: tuple[int, ...],
    kind: str,
    parts: tuple[str, ...],
    unpack: Callable[[Mapping[str, Tensor]], Tensor],
) -> PackedWeight:
    """Return a weight of so many parts."""
    n_bytes = sum(source.tensors[part].n_bytes for part in parts)
    info = TensorInfo(shape=shape, dtype=kind, n_bytes=n_bytes)
    return PackedWeight(info=info, parts=parts, unpack=unpack)


def misfit(path: str, name: str, found: object, expected: str) -> CheckpointError:
    """Return the error for parts that do not fit each other."""
    return CheckpointError(
        f"{path}: the packed weight {name!r} has {found}; expected {expected}. "
        "Fetch the model again, or use its unquantised files."
    )
