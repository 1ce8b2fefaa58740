"""Headers of safetensors files that are written by hand, with holes where nothing reads."""

import json
import math
import struct
from collections.abc import Mapping

ITEM = 2  # bytes of a bfloat16


def shard_start(shapes: Mapping[str, tuple[int, ...]]) -> tuple[bytes, dict[str, int], int]:
    """Return the first bytes of a file of bfloat16 tensors, where each begins, and its length."""
    header, begins, end = {}, {}, 0
    for name, shape in shapes.items():
        begins[name], end = end, end + ITEM * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [begins[name], end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = struct.pack("<Q", len(text)) + text
    return start, {name: len(start) + begin for name, begin in begins.items()}, len(start) + end
