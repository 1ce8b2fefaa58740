"""PyTorch `.bin` files: refused unless the user allows them, and then only as plain tensors.

A pickle can run code when it is read. With the user's leave it is read by `torch.load` with
`weights_only=True`, which builds tensors and nothing else.
"""

import hashlib
import pickle
import struct
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from orbitlens.checkpoint.source import TensorInfo
from orbitlens.errors import CheckpointError
from orbitlens.files import open_regular

FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# A damaged pickle raises whatever its instructions happen to hit.
PICKLE_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    BufferError,
    EOFError,
    ImportError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
    pickle.PickleError,
    struct.error,
    zipfile.BadZipFile,
)
HEADER_BYTES = 4096  # a pickle has no header: its first bytes stand in for one


class PickleSource:
    """The tensors of one or several `.bin` files, memory-mapped."""

    def __init__(self, files: list[Path]) -> None:
        """Map `files`, which the user has allowed."""
        self._values: dict[str, Tensor] = {}
        for file in files:
            self._values |= _load(file)
        self._tensors = {
            name: TensorInfo(
                shape=tuple(value.shape),
                dtype=str(value.dtype).removeprefix("torch."),
                n_bytes=value.numel() * value.element_size(),
            )
            for name, value in self._values.items()
        }
        self._hashes = {file.name: _start_sha256(file) for file in files}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description."""
        return self._tensors

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of each file's first bytes, by file name."""
        return self._hashes

    def read(self, name: str) -> Tensor:
        """Return one tensor; packed integers and anything not written out in full are refused."""
        value = self._values[name]
        if value.dtype not in FLOATS:
            raise CheckpointError(
                f"tensor {name!r} is stored as {value.dtype}, not as floating point. "
                "Use the model's unquantised files, or a GGUF file."
            )
        if not _is_written_out(value):
            raise CheckpointError(
                f"tensor {name!r} is sparse, repeated or without data; expected all its numbers in "
                "the file. Convert the model to safetensors."
            )
        return value.detach()


def _is_written_out(value: Tensor) -> bool:
    """Say whether every number is in the file: a few bytes may claim to be a tensor of any size."""
    if value.layout is not torch.strided or value.device.type != "cpu":
        return False
    return value.untyped_storage().nbytes() >= value.numel() * value.element_size()


def _load(file: Path) -> dict[str, Tensor]:
    try:
        mapped = zipfile.is_zipfile(file)  # files from before 2020 are not, and cannot be mapped
        with warnings.catch_warnings(action="ignore"):  # about protocols: nothing a user can change
            value = torch.load(file, map_location="cpu", weights_only=True, mmap=mapped)
    except PICKLE_ERRORS as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{file}: not a PyTorch file of plain tensors ({reason}). "
            "Convert it to safetensors, or fetch the model's safetensors files."
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file}: holds a {type(value).__name__}, expected tensors by name.")
    return {k: v for k, v in value.items() if isinstance(k, str) and isinstance(v, Tensor)}


def _start_sha256(file: Path) -> str:
    with open_regular(file) as handle:
        return hashlib.sha256(handle.read(HEADER_BYTES)).hexdigest()
