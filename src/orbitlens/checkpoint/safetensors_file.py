"""Safetensors files, one or many shards, as a `TensorSource`.

Enters: files. Leaves: names and shapes from the headers, and one tensor at a time. Files are
untrusted: `safetensors_header.py` says what a header may claim.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack

import torch
from torch import Tensor

from orbitlens.checkpoint.safetensors_header import broken_file, header_bytes, tensor_places
from orbitlens.checkpoint.source import TensorInfo
from orbitlens.checkpoint.stored_file import Span, StoredFile
from orbitlens.errors import CheckpointError

TORCH_TYPES = {
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E8M0": torch.float8_e8m0fnu,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
}
FLOATS = {"F8_E4M3", "F8_E5M2", "F16", "BF16", "F32", "F64"}
SCALES = FLOATS | {"F8_E8M0"}  # a scale may also be a bare power of two
# Where fp8 checkpoints keep the factor that restores a weight: one a block, or one a row or tensor
SCALE_SUFFIXES = ("_scale_inv", "_scale")
SCALE_BLOCK = 128


class SafetensorsSource:
    """The tensors of one or several safetensors files."""

    def __init__(self, files: Sequence[StoredFile]) -> None:
        """Read the headers of `files`; of their data, nothing."""
        self._file_of: dict[str, StoredFile] = {}
        self._offset_of: dict[str, int] = {}
        self._tensors: dict[str, TensorInfo] = {}
        self._hashes: dict[str, str] = {}
        for file in files:
            start = header_bytes(file)
            self._hashes[file.name] = hashlib.sha256(start).hexdigest()
            for name, place in tensor_places(file, start).items():
                self._tensors[name], self._offset_of[name] = place.info, place.offset
                self._file_of[name] = file

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description."""
        return self._tensors

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of each file's header, by file name."""
        return self._hashes

    def expecting(self, names: Sequence[str]) -> AbstractContextManager[object]:
        """Be told which tensors are read within, so that neighbours can be fetched together."""
        spans: dict[StoredFile, list[Span]] = {}
        wanted = [each for name in names for each in (name, *self._scales_of(name))]
        for name in wanted:
            if name in self._tensors:
                place = (self._offset_of[name], self._tensors[name].n_bytes)
                spans.setdefault(self._file_of[name], []).append(place)
        within = ExitStack()
        for file, places in spans.items():
            within.enter_context(file.expecting(places))
        return within

    def read(self, name: str) -> Tensor:
        """Return one tensor in its own floating type; fp8 comes back scaled, as float32."""
        info = self._tensors[name]
        if info.dtype not in FLOATS:
            raise CheckpointError(
                f"{self._file_of[name].shown}: tensor {name!r} is stored as {info.dtype}, not as "
                "floating point, and nothing beside it says how it was packed. "
                "Use the model's unquantised files, or a GGUF file."
            )
        value = self.stored(name)
        return self._rescaled(name, value) if info.dtype.startswith("F8") else value

    def stored(self, name: str) -> Tensor:
        """Return one tensor as the file has it, integers included.

        Raises:
            CheckpointError: torch has no such type, or the data cannot be read.
        """
        info, file = self._tensors[name], self._file_of[name]
        if info.dtype not in TORCH_TYPES:
            raise CheckpointError(
                f"{file.shown}: tensor {name!r} is stored as {info.dtype}, which is not read. "
                "Use the model's unquantised files, or a GGUF file."
            )
        dtype = TORCH_TYPES[info.dtype]
        if info.n_bytes == 0:
            return torch.empty(info.shape, dtype=dtype)
        try:
            data = file.read(self._offset_of[name], info.n_bytes)
        except OSError as error:
            raise broken_file(file, error) from error
        return torch.frombuffer(data, dtype=dtype).reshape(info.shape)

    def _scales_of(self, name: str) -> list[str]:
        return [name + suffix for suffix in SCALE_SUFFIXES if name + suffix in self._tensors]

    def _rescaled(self, name: str, value: Tensor) -> Tensor:
        value = value.to(torch.float32)
        for scale in self._scales_of(name):
            if self._tensors[scale].dtype not in SCALES:
                raise CheckpointError(
                    f"{self._file_of[scale].shown}: the fp8 scale {scale!r} is stored as "
                    f"{self._tensors[scale].dtype}; expected floating point. Use the model's "
                    "unquantised files."
                )
            return value * _expanded(self.stored(scale).to(torch.float32), value, name)
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
