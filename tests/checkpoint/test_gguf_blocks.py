"""GGUF's K-quants, number by number against loops written from ggml's layout of each block.

A product of a 16-bit scale, a 6-bit scale and a 6-bit number fits a float32, so what a block says
is one rounding away from exact: float64 arithmetic, rounded once, is the only right answer.
"""

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from orbitlens.checkpoint.gguf_file import GgufSource
from orbitlens.checkpoint.stored_file import DiskFile

BLOCK = 256


def half(block, place):
    return float(np.frombuffer(block[place : place + 2].tobytes(), dtype="<f2")[0])


def q2_k(block):
    """16 bytes of scale | min, 64 bytes of two bits, scale and scale of mins."""
    d, d_min = half(block, 80), half(block, 82)
    values = []
    for n in range(BLOCK):
        part, within = divmod(n, 128)
        row, place = divmod(within, 32)
        both = int(block[n // 16])
        q = int(block[16 + 32 * part + place]) >> 2 * row & 3
        values.append(d * (both & 15) * q - d_min * (both >> 4))
    return values


def q3_k(block):
    """32 bytes of top bits (a bit that is missing takes 4 away), 64 of two bits, scales, scale."""
    d, top, low, packed = half(block, 108), block[:32], block[32:96], block[96:108]
    values = []
    for n in range(BLOCK):
        part, within = divmod(n, 128)
        row, place = divmod(within, 32)
        k = n // 16
        nibble = int(packed[k]) & 15 if k < 8 else int(packed[k - 8]) >> 4
        scale = nibble | (int(packed[8 + k % 4]) >> 2 * (k // 4) & 3) << 4
        q = int(low[32 * part + place]) >> 2 * row & 3
        if not int(top[place]) >> 4 * part + row & 1:
            q -= 4
        values.append(d * (scale - 32) * q)
    return values


def scale_and_min(packed, k):
    """Twelve bytes hold eight scales and eight mins of six bits."""
    if k < 4:
        return int(packed[k]) & 63, int(packed[k + 4]) & 63
    low, high = int(packed[k + 4]), (int(packed[k - 4]) >> 6, int(packed[k]) >> 6)
    return (low & 15) | high[0] << 4, low >> 4 | high[1] << 4


def q4_k(block):
    d, d_min, packed, low = half(block, 0), half(block, 2), block[4:16], block[16:]
    values = []
    for n in range(BLOCK):
        scale, least = scale_and_min(packed, n // 32)
        q = int(low[32 * (n // 64) + n % 32]) >> 4 * (n // 32 % 2) & 15
        values.append(d * scale * q - d_min * least)
    return values


def q5_k(block):
    d, d_min, packed, top, low = (
        half(block, 0), half(block, 2), block[4:16], block[16:48], block[48:],
    )  # fmt: skip
    values = []
    for n in range(BLOCK):
        scale, least = scale_and_min(packed, n // 32)
        q = int(low[32 * (n // 64) + n % 32]) >> 4 * (n // 32 % 2) & 15
        q += 16 * (int(top[n % 32]) >> n // 32 & 1)
        values.append(d * scale * q - d_min * least)
    return values


def q6_k(block):
    low, top, scales, d = (
        block[:128],
        block[128:192],
        block[192:208].view(np.int8),
        half(block, 208),
    )
    values = []
    for n in range(BLOCK):
        part, within = divmod(n, 128)
        row, place = divmod(within, 32)
        nibble = int(low[64 * part + 32 * (row % 2) + place]) >> 4 * (row // 2) & 15
        q = (nibble | (int(top[32 * part + place]) >> 2 * row & 3) << 4) - 32
        values.append(d * int(scales[n // 16]) * q)
    return values


DEFINED = {Kind.Q2_K: q2_k, Kind.Q3_K: q3_k, Kind.Q4_K: q4_k, Kind.Q5_K: q5_k, Kind.Q6_K: q6_k}
SCALES = {
    Kind.Q2_K: (80, 82), Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q5_K: (0, 2), Kind.Q6_K: (208,),
}  # fmt: skip


@pytest.mark.parametrize("kind", DEFINED, ids=lambda kind: kind.name)
def test_k_quants_are_read_to_the_bit(kind, tmp_path):
    random = np.random.default_rng(kind.value)
    n_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    blocks = random.integers(0, 256, size=(3, 2, n_bytes), dtype=np.uint8)
    for place in SCALES[kind]:  # random bytes there could be an infinity
        blocks[..., place : place + 2] = random.normal(size=(3, 2, 1)).astype("<f2").view(np.uint8)
    file = tmp_path / "t.gguf"
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_tensor("x", blocks.reshape(3, -1), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = np.array([[DEFINED[kind](block) for block in row] for row in blocks])
    found = GgufSource(DiskFile(file)).read("x").numpy()
    np.testing.assert_array_equal(found, expected.reshape(3, -1).astype(np.float32))
