"""Safetensors files, one or many shards, as a `TensorSource`.

Enters: paths. Leaves: names and shapes from the headers, and one memory-mapped tensor at a time.
Files are untrusted: every complaint of the safetensors library becomes a `CheckpointError`.
"""

import hashlib
import math
import struct
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from orbitlens.checkpoint.source import TensorInfo
from orbitlens.errors import CheckpointError
from orbitlens.files import open_regular

BYTES_PER_ITEM = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1}
BYTES_PER_ITEM |= {"I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4, "F32": 4}
BYTES_PER_ITEM |= {"I64": 8, "U64": 8, "F64": 8}
FLOATS = {"F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64"}
SCALES = FLOATS | {"F8_E8M0"}  # a scale may also be a bare power of two
# Where fp8 checkpoints keep the factor that restores a weight: one a block, or one a row or tensor
SCALE_SUFFIXES = ("_scale_inv", "_scale")
SCALE_BLOCK = 128
LARGEST_HEADER = 32_000_000  # bytes: 250,000 tensors; the format itself allows 100 million


class SafetensorsSource:
    """The tensors of one or several safetensors files."""

    def __init__(self, files: list[Path]) -> None:
        """Read the headers of `files`; of their data, nothing."""
        self._file_of: dict[str, Path] = {}
        self._tensors: dict[str, TensorInfo] = {}
        self._hashes = {file.name: header_sha256(file) for file in files}
        for file in files:
            self._index(file)

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description."""
        return self._tensors

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of each file's header, by file name."""
        return self._hashes

    def _index(self, file: Path) -> None:
        try:
            with safe_open(file, framework="pt") as handle:
                for name in handle.keys():
                    part = handle.get_slice(name)
                    shape, dtype = tuple(part.get_shape()), str(part.get_dtype())
                    n_bytes = math.prod(shape) * BYTES_PER_ITEM.get(dtype, 0)
                    self._tensors[name] = TensorInfo(shape=shape, dtype=dtype, n_bytes=n_bytes)
                    self._file_of[name] = file
        except (SafetensorError, OSError, ValueError) as error:
            raise broken_file(file, error) from error

    def read(self, name: str) -> Tensor:
        """Return one tensor in its own floating type; fp8 comes back scaled, as float32."""
        info = self._tensors[name]
        if info.dtype not in FLOATS:
            raise CheckpointError(
                f"{self._file_of[name]}: tensor {name!r} is stored as {info.dtype}, not as "
                "floating point; packed integer formats (GPTQ, AWQ, bitsandbytes) are not read. "
                "Use the model's unquantised files, or a GGUF file."
            )
        value = self._raw(name)
        return self._rescaled(name, value) if info.dtype.startswith("F8") else value

    def _raw(self, name: str) -> Tensor:
        # Opened anew each time: the mapping lives as long as the tensor, so memory holds the pages
        # of what is in use and not of all that was ever read.
        file = self._file_of[name]
        try:
            with safe_open(file, framework="pt") as handle:
                return handle.get_tensor(name)
        except (SafetensorError, OSError, ValueError) as error:
            raise broken_file(file, error) from error

    def _rescaled(self, name: str, value: Tensor) -> Tensor:
        value = value.to(torch.float32)
        for suffix in SCALE_SUFFIXES:
            scale = self._tensors.get(name + suffix)
            if scale is None:
                continue
            if scale.dtype not in SCALES:
                raise CheckpointError(
                    f"{self._file_of[name + suffix]}: the fp8 scale {name + suffix!r} is stored as "
                    f"{scale.dtype}; expected floating point. Use the model's unquantised files."
                )
            return value * _expanded(self._raw(name + suffix).to(torch.float32), value, name)
        return value


def _expanded(scale: Tensor, value: Tensor, name: str) -> Tensor:
    """Spread a scale (one number, one a row, or one a block) over the weight it belongs to."""
    if scale.numel() == 1:
        return scale.reshape(())
    if scale.ndim == 1 and value.ndim == 2 and scale.shape[0] == value.shape[0]:
        return scale[:, None]
    sizes = list(zip(scale.shape, value.shape, strict=False))
    if scale.ndim != value.ndim or not all(0 < blocks <= size for blocks, size in sizes):
        raise CheckpointError(
            f"tensor {name!r} of shape {list(value.shape)} has an fp8 scale of shape "
            f"{list(scale.shape)}; expected one number, one a row, or one a block."
        )
    for axis, size in enumerate(value.shape):
        block = (
            SCALE_BLOCK
            if -(-size // SCALE_BLOCK) == scale.shape[axis]
            else -(-size // scale.shape[axis])
        )
        scale = scale.repeat_interleave(block, dim=axis).narrow(axis, 0, size)
    return scale


def header_sha256(file: Path) -> str:
    """Return the SHA-256 of a safetensors header: its length, names, shapes, types and offsets."""
    return hashlib.sha256(header_bytes(file)).hexdigest()


def header_bytes(file: Path) -> bytes:
    """Return how a safetensors file begins: 8 bytes that give its header's length, and the header.

    Raises:
        CheckpointError: it is no such file, or its header is out of bounds.
    """
    try:
        with open_regular(file) as handle:
            start = handle.read(8)
            if len(start) < 8:
                raise broken_file(
                    file, "it is shorter than the 8 bytes that give a header's length"
                )
            (length,) = struct.unpack("<Q", start)
            if length > min(LARGEST_HEADER, file.stat().st_size - 8):
                raise broken_file(file, f"it announces a header of {length} bytes")
            return start + handle.read(length)
    except OSError as error:
        raise broken_file(file, error) from error


def broken_file(file: Path, reason: object) -> CheckpointError:
    """Return the error for a file that is not what its name says."""
    return CheckpointError(
        f"{file}: this is not a whole safetensors file ({reason}). "
        "Fetch it again: it may be cut short, or a text file (a Git LFS pointer, a web page)."
    )
