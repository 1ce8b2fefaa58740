"""The header of a safetensors file: which tensors it has, and where.

Enters: a `StoredFile`, untrusted. Leaves: a place for each tensor, all of them together the whole
of the file: types and shapes account for every byte, none is claimed twice and none is left over.
The header is parsed here and not by the `safetensors` package, which reads files of a disk alone.
Format: https://github.com/huggingface/safetensors#format
"""

import json
import math
import struct
from dataclasses import dataclass
from typing import Any

from orbitlens.checkpoint.source import TensorInfo
from orbitlens.checkpoint.stored_file import StoredFile
from orbitlens.errors import CheckpointError, OrbitlensError

# Bits of a number, by the format's name of its type
BITS = dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8)
BITS |= dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8)
BITS |= dict.fromkeys(("I16", "U16", "F16", "BF16"), 16) | dict.fromkeys(("I32", "U32", "F32"), 32)
BITS |= dict.fromkeys(("I64", "U64", "F64", "C64"), 64)
BITS |= {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
LENGTH = 8  # bytes in front, which give the header's length
LARGEST_HEADER = 32_000_000  # bytes; the format itself allows 100 million
MOST_CONTAINERS = 500_000  # objects and lists: 160,000 tensors in one file
METADATA = "__metadata__"


@dataclass(frozen=True, kw_only=True)
class TensorPlace:
    """Where one tensor's data is in the file."""

    info: TensorInfo
    offset: int  # from the start of the file


def header_bytes(file: StoredFile) -> bytes:
    """Return how a safetensors file begins: 8 bytes that give its header's length, and the header.

    Raises:
        CheckpointError: it is no such file, or its header is out of bounds.
    """
    try:
        if file.size < LENGTH:
            raise broken_file(file, "it is shorter than the 8 bytes that give a header's length")
        start = bytes(file.read(0, LENGTH))
        (length,) = struct.unpack("<Q", start)
        if length > min(LARGEST_HEADER, file.size - LENGTH):
            raise broken_file(file, f"it announces a header of {length} bytes")
        return start + bytes(file.read(LENGTH, length))
    except OSError as error:
        raise broken_file(file, error) from error


def tensor_places(file: StoredFile, start: bytes) -> dict[str, TensorPlace]:
    """Return where every tensor is, from the bytes that `header_bytes` gave.

    Raises:
        CheckpointError: they are no header, or do not account for every byte of the file.
    """
    try:
        header = _parsed(start[LENGTH:])
        places = {
            name: _place(name, entry, len(start))
            for name, entry in header.items()
            if name != METADATA
        }
        _check_cover(places, len(start), file.size)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise broken_file(file, _reason(error)) from error
    return places


def _parsed(text: bytes) -> dict[str, Any]:
    if text.count(b"{") + text.count(b"[") > MOST_CONTAINERS:
        raise ValueError(f"its header holds more than {MOST_CONTAINERS} objects and lists")
    header = json.loads(text.decode("utf-8"), object_pairs_hook=_once)
    if not isinstance(header, dict):
        raise ValueError(f"its header is a {type(header).__name__}, not an object")
    return header


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has one name twice")
    return found


def _place(name: str, entry: Any, data_start: int) -> TensorPlace:  # noqa: ANN401 - of a file
    dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
    numbers = [*shape, begin, end]
    if not all(type(number) is int and 0 <= number < 2**63 for number in numbers):
        raise ValueError(f"tensor {name!r} has a shape or offsets that are no sizes")
    n_bits = math.prod(shape) * BITS[dtype]
    if n_bits % 8 or end - begin != n_bits // 8:
        raise ValueError(
            f"tensor {name!r} of type {dtype} and shape {shape} has {end - begin} bytes"
        )
    info = TensorInfo(shape=tuple(shape), dtype=dtype, n_bytes=end - begin)
    return TensorPlace(info=info, offset=data_start + begin)


def _check_cover(places: dict[str, TensorPlace], data_start: int, size: int) -> None:
    """Refuse places that overlap, leave holes, or end elsewhere than the file does."""
    end = data_start
    for place in sorted(places.values(), key=lambda each: (each.offset, each.info.n_bytes)):
        if place.offset != end:
            raise ValueError(f"the tensors' data overlap or leave a hole at byte {end}")
        end += place.info.n_bytes
    if end != size:
        raise ValueError(f"its data end at byte {end} and the file at {size}")


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"its header has an unknown type or lacks an entry: {error}"
    return str(error)


def broken_file(file: StoredFile, reason: object) -> OrbitlensError:
    """Return the error for a file that is not what its name says."""
    return CheckpointError(
        f"{file.shown}: this is not a whole safetensors file ({reason}). "
        "Fetch it again: it may be cut short, or a text file (a Git LFS pointer, a web page)."
    )
