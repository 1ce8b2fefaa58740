"""The header of a GGUF file: metadata, and where each tensor's data is.

Enters: an open file. Leaves: a `GgufHeader`. Files are untrusted. The header is parsed here and not
by `gguf.GGUFReader`, which makes several array objects for each token of the vocabulary (16 s and
600 MB for 150 000 tokens) and has no limit on what a header may ask for.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import struct
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from orbitlens.checkpoint.source import TensorInfo
from orbitlens.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1, of August 2023, has lengths of another width
LARGEST_HEADER = 1 << 26  # the largest vocabularies make headers of some 2**24 bytes
LARGEST_COUNT = 1 << 16  # of tensors, and of metadata keys
LARGEST_ARRAY = 1 << 14  # longer ones are vocabularies, and not kept
LARGEST_STRING = 1 << 16
MOST_ITEMS = 1 << 21  # in all arrays; 262,000 tokens with scores, types and merges make 1.3 million
MOST_KEPT_ITEMS = 1 << 20  # in arrays that are kept
MOST_KEPT_TEXT = 1 << 23  # bytes of names and strings that are kept
MAX_DIMS = 4  # ggml's own limit
DEFAULT_ALIGNMENT = 32

# The format's numbers for the types of metadata values, as codes of `struct`.
SCALARS = dict(enumerate("BbHhIif?")) | {10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """Where one tensor's data is in the file."""

    info: TensorInfo
    kind: GGMLQuantizationType
    offset: int  # from the start of the file


class GgufHeader:
    """What a file holds besides tensor data, read field by field and never past its end."""

    def __init__(self, file: BinaryIO, path: str, size: int) -> None:
        """Read the header of `file`, which messages call `path` and which has `size` bytes."""
        self._file, self._path, self._size = file, path, size
        self._left = min(self._size, LARGEST_HEADER)
        self._n_items = self._kept_items = self._kept_text = 0
        n_tensors, n_keys = self._start()
        self.metadata = self._all_metadata(n_keys)
        described = [self._description() for _ in range(n_tensors)]
        end = min(self._size, LARGEST_HEADER) - self._left
        self.data_start = end + -end % self._alignment()
        self.stored: dict[str, StoredTensor] = {}
        for name, dims, raw_kind, offset in described:
            if name in self.stored:
                raise self._broken(f"two tensors are called {name!r}")
            self.stored[name] = self._placed(name, dims, raw_kind, offset)

    def _start(self) -> tuple[int, int]:
        magic = self._file.read(4)
        if magic != MAGIC:
            raise CheckpointError(
                f"{self._path}: this is not a GGUF file: it starts with {magic!r}, expected "
                f"{MAGIC!r}. Check the path, or fetch the file again."
            )
        self._left -= 4
        version = self._number("I")
        if version & 0xFFFF == 0 and version:
            raise CheckpointError(
                f"{self._path}: this GGUF file is big-endian; only little-endian ones are read. "
                "Convert it with llama.cpp's gguf_convert_endian.py."
            )
        if version not in VERSIONS:
            raise CheckpointError(
                f"{self._path}: this GGUF file has version {version}; versions "
                f"{' and '.join(map(str, VERSIONS))} are read. Convert the model again."
            )
        n_tensors, n_keys = self._number("Q"), self._number("Q")
        if max(n_tensors, n_keys) > LARGEST_COUNT:
            raise self._broken(f"it announces {n_tensors} tensors and {n_keys} metadata keys")
        return n_tensors, n_keys

    def _all_metadata(self, n_keys: int) -> dict[str, Any]:
        metadata: dict[str, Any] = {}
        for _ in range(n_keys):
            key = self._name()
            if key in metadata:
                raise self._broken(f"metadata key {key!r} appears twice")
            metadata[key] = self._value(self._number("I"), key)
        return metadata

    def _description(self) -> tuple[str, list[int], int, int]:
        name = self._name()
        n_dims = self._number("I")
        if n_dims > MAX_DIMS:
            raise self._broken(f"tensor {name!r} has {n_dims} dimensions, at most {MAX_DIMS} fit")
        dims = [self._number("Q") for _ in range(n_dims)]
        return name, dims, self._number("I"), self._number("Q")

    def _placed(self, name: str, dims: list[int], raw_kind: int, offset: int) -> StoredTensor:
        if raw_kind not in GGML_QUANT_SIZES:
            raise CheckpointError(
                f"{self._path}: tensor {name!r} has type number {raw_kind}, which the gguf package "
                "does not know. Update it (pip install -U gguf), or convert the model again."
            )
        kind = GGMLQuantizationType(raw_kind)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        # GGUF counts from the fastest dimension, torch from the slowest.
        shape = tuple(reversed(dims))
        if 0 in shape or math.prod(shape[-1:]) % block:
            raise self._broken(f"tensor {name!r} of type {kind.name} has shape {list(shape)}")
        n_bytes = math.prod(shape) // block * block_bytes
        if self.data_start + offset + n_bytes > self._size:
            raise CheckpointError(
                f"{self._path}: the file is cut short: tensor {name!r} ends at byte "
                f"{self.data_start + offset + n_bytes} and the file at {self._size}. "
                "Fetch it again."
            )
        info = TensorInfo(shape=shape, dtype=kind.name, n_bytes=n_bytes)
        return StoredTensor(info=info, kind=kind, offset=self.data_start + offset)

    def _alignment(self) -> int:
        value = self.metadata.get("general.alignment", DEFAULT_ALIGNMENT)
        if not isinstance(value, int) or value <= 0 or value & (value - 1):
            raise self._broken(f"general.alignment is {value!r}, expected a power of two")
        return value

    def _value(self, kind: int, key: str) -> Any:  # noqa: ANN401 - metadata holds anything
        """Return one metadata value; None for what is too long to be a setting."""
        if kind == STRING:
            length = self._number("Q")
            if length <= LARGEST_STRING:
                return self._text(length)
            self._skip(length)
            return None
        if kind == ARRAY:
            return self._array(self._number("I"), self._number("Q"), key)
        if kind not in SCALARS:
            raise self._broken(f"metadata key {key!r} has a value of unknown type {kind}")
        value = self._number(SCALARS[kind])
        # A float32 stands for the decimal it was rounded from: 1e-6, not 9.99999997e-07.
        return float(str(np.float32(value))) if SCALARS[kind] == "f" else value

    def _array(self, kind: int, length: int, key: str) -> list[Any] | None:
        self._n_items += length
        if self._n_items > MOST_ITEMS:
            raise self._broken(f"its arrays hold more than {MOST_ITEMS} entries, with {key!r}")
        if kind == STRING:
            self._check(8 * length)
            for _ in range(length):
                self._skip(self._number("Q"))
            return None
        if kind not in SCALARS:  # nor arrays of arrays, which no writer makes
            raise self._broken(f"metadata key {key!r} is an array of unknown type {kind}")
        n_bytes = length * struct.calcsize("<" + SCALARS[kind])
        if length <= LARGEST_ARRAY:
            self._kept_items += length
            if self._kept_items > MOST_KEPT_ITEMS:
                raise self._broken(f"its short arrays hold more than {MOST_KEPT_ITEMS} entries")
            return list(struct.unpack(f"<{length}{SCALARS[kind]}", self._bytes(n_bytes)))
        self._skip(n_bytes)
        return None

    def _name(self) -> str:
        length = self._number("Q")
        if length > LARGEST_STRING:
            raise self._broken(f"it announces a name of {length} bytes")
        return self._text(length)

    def _text(self, length: int) -> str:
        self._kept_text += length
        if self._kept_text > MOST_KEPT_TEXT:
            raise self._broken(f"its names and strings have more than {MOST_KEPT_TEXT} bytes")
        try:
            return self._bytes(length).decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._broken(f"it holds text that is not UTF-8: {error.reason}") from error

    def _number(self, code: str) -> Any:  # noqa: ANN401 - an int, a float or a bool
        return struct.unpack("<" + code, self._bytes(struct.calcsize("<" + code)))[0]

    def _bytes(self, n_bytes: int) -> bytes:
        self._check(n_bytes)
        data = self._file.read(n_bytes)
        if len(data) != n_bytes:
            raise self._broken("it ends inside its header")
        self._left -= n_bytes
        return data

    def _skip(self, n_bytes: int) -> None:
        self._check(n_bytes)
        self._file.seek(n_bytes, 1)
        self._left -= n_bytes

    def _check(self, n_bytes: int) -> None:
        if n_bytes > self._left:
            limit = "it ends" if self._size <= LARGEST_HEADER else f"byte {LARGEST_HEADER} is"
            raise self._broken(f"{limit} inside its header")

    def _broken(self, reason: str) -> CheckpointError:
        return CheckpointError(
            f"{self._path}: this is not a whole GGUF file ({reason}). "
            "Fetch it again: it may be cut short or damaged."
        )
