"""A GGUF file as a `TensorSource`: names, shapes and one dequantised tensor at a time.

Enters: a file. Leaves: a `GgufSource`. Blocks are dequantised by the `gguf` package, all its types.
"""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, BinaryIO

import numpy as np
import torch
from gguf.constants import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from orbitlens.checkpoint.gguf_header import GgufHeader
from orbitlens.checkpoint.source import TensorInfo
from orbitlens.checkpoint.stored_file import StoredFile
from orbitlens.errors import CheckpointError

CHUNK = 1 << 22  # bytes made at a time: what reading a tensor needs beside the tensor


class GgufSource:
    """The tensors and the metadata of one GGUF file."""

    def __init__(self, file: StoredFile) -> None:
        """Read the header of `file`; of its data, nothing."""
        self.file, self.path = file, file.shown
        try:
            with file.opened() as stream:
                header = GgufHeader(stream, self.path, file.size)
                self.metadata: Mapping[str, Any] = header.metadata
                self._stored = header.stored
                digest = _sha256_of_start(stream, header.data_start)
        except OSError as error:
            raise CheckpointError(f"{self.path}: the file cannot be read ({error}).") from error
        self._tensors = {name: stored.info for name, stored in self._stored.items()}
        self._hashes = {file.name: digest}
        self._refuse_part()

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description."""
        return self._tensors

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of everything before the tensors' data, by file name."""
        return self._hashes

    def expecting(self, names: Sequence[str]) -> AbstractContextManager[None]:
        """Be told which tensors are read within, so that neighbours can be fetched together."""
        wanted = (self._stored[name] for name in names if name in self._stored)
        return self.file.expecting([(each.offset, each.info.n_bytes) for each in wanted])

    def read(self, name: str) -> Tensor:
        """Return one tensor as float32 (float64 where it is stored so).

        A weight with a factor of its own beside it (`x.scale` for `x.weight`, as NVFP4 files have)
        comes back multiplied by it.
        """
        value = self._dequantised(name)
        factor = name.removesuffix(".weight") + ".scale"
        if name.endswith(".weight") and factor in self._stored:
            value *= self._factor(factor)
        return value

    def _factor(self, name: str) -> float:
        if math.prod(self._tensors[name].shape) != 1:
            shape = list(self._tensors[name].shape)
            raise CheckpointError(
                f"{self.path}: tensor {name!r} scales a whole weight and has shape {shape}; "
                "expected one number."
            )
        return self._dequantised(name).item()

    def _dequantised(self, name: str) -> Tensor:
        stored = self._stored[name]
        n_rows, width = math.prod(stored.info.shape[:-1]), math.prod(stored.info.shape[-1:])
        row_bytes = stored.info.n_bytes // n_rows
        is_double = stored.kind is GGMLQuantizationType.F64
        values = torch.empty((n_rows, width), dtype=torch.float64 if is_double else torch.float32)
        offset = stored.offset
        for rows in values.split(max(1, CHUNK // (width * values.itemsize))):
            rows.copy_(self._rows(offset, len(rows), row_bytes, name))
            offset += len(rows) * row_bytes
        return values.reshape(stored.info.shape)

    def _rows(self, offset: int, n_rows: int, row_bytes: int, name: str) -> Tensor:
        kind = self._stored[name].kind
        try:
            raw = np.frombuffer(self.file.read(offset, n_rows * row_bytes), dtype=np.uint8)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} cannot be read ({error}). Fetch the file again."
            ) from error
        raw = raw.reshape(n_rows, row_bytes)
        if kind is GGMLQuantizationType.F64:  # the one plain type that `dequantize` does not know
            return torch.from_numpy(raw.view(np.float64))
        try:
            # A scale may be infinite in a broken file; whoever uses the weights names the tensor.
            with np.errstate(all="ignore"):
                return torch.from_numpy(dequantize(raw, kind))
        except NotImplementedError as error:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {kind.name}, which the gguf package "
                "cannot turn into numbers. Update it (pip install -U gguf), or use a file of the "
                "model in another type, such as Q8_0 or F16."
            ) from error

    def _refuse_part(self) -> None:
        count, number = self.metadata.get("split.count"), self.metadata.get("split.no")
        if isinstance(count, int) and count > 1:
            part = f"part {number + 1}" if isinstance(number, int) else "one part"
            raise CheckpointError(
                f"{self.path}: this is {part} of {count} of a split model. Join the parts first, "
                "with llama.cpp's `llama-gguf-split --merge FIRST-PART WHOLE.gguf`."
            )


def _sha256_of_start(file: BinaryIO, n_bytes: int) -> str:
    digest = hashlib.sha256()
    file.seek(0)
    while n_bytes > 0 and (data := file.read(min(n_bytes, CHUNK))):
        digest.update(data)
        n_bytes -= len(data)
    return digest.hexdigest()
