"""GPTQ and AWQ: weights as small integers in 32-bit words, with a scale and a zero a group.

Enters: a `SafetensorsSource` and the config's `quantization_config`. Leaves: `PackedWeight`s by the
name of the weight. With x_i an input, g(i) its group and o an output,

    weight[o, i] = scales[g(i), o] * (q[i, o] - zero[g(i), o])

GPTQ packs q along inputs and zeros along outputs, each a stream of bits from the lowest on (3-bit
numbers cross words), and stores zeros less one, modulo the range, in its first format. AWQ packs
both along outputs, eight to a word, in the order 0 2 4 6 1 3 5 7.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from jaxtyping import Int, Integer, UInt8
from torch import Tensor

from orbitlens.checkpoint.packed_weight import CHUNK, PackedWeight, misfit, of_parts
from orbitlens.checkpoint.safetensors_file import FLOATS, SafetensorsSource
from orbitlens.errors import CheckpointError

WORD = 32  # bits
GPTQ_BITS = (2, 3, 4, 8)
GPTQ_FORMATS = {"gptq": 1, "gptq_v2": 0}  # checkpoint_format -> what is added to a stored zero
AWQ_BITS = 4
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the output that lies at each place of a word

Words = Int[Tensor, "_ _"]
Numbers = UInt8[Tensor, "_ _"]


def gptq_weights(
    source: SafetensorsSource, settings: Mapping[str, Any], path: str
) -> Iterator[tuple[str, PackedWeight]]:
    """Yield the weights that GPTQ has packed.

    Raises:
        CheckpointError: parts do not fit each other, or are laid out for one kernel alone.
    """
    stated = settings.get("checkpoint_format", "gptq")
    if stated not in GPTQ_FORMATS:
        raise CheckpointError(
            f"{path}: by its config GPTQ's weights are laid out as {str(stated)[:40]!r}, for one "
            f"kernel alone; read are {' and '.join(GPTQ_FORMATS)}. Use the model's unquantised "
            "files."
        )
    for name in _packed_names(source):
        shape = source.tensors[f"{name}.qweight"].shape
        order = source.tensors.get(f"{name}.g_idx")
        bits = settings.get("bits") if order is None else _bits(shape, order.shape)
        if bits not in GPTQ_BITS:
            raise misfit(path, name, f"{bits} bits a number", f"one of {list(GPTQ_BITS)}")
        if shape[0] % _words(bits) or shape[1] * bits % (WORD * _words(bits)):
            raise misfit(path, name, f"shape {list(shape)}", f"whole words of {bits} bits a number")
        n_in, n_out = shape[0] * WORD // bits, shape[1]
        n_groups = _groups(source, name, path, (n_in, n_out), n_out * bits // WORD)
        size = settings.get("group_size", -1)
        if order is None and not _is_group_size(size, n_in, n_groups):
            raise misfit(path, name, f"groups of {size}", f"{n_groups} groups of {n_in} inputs")
        optional = () if order is None else (f"{name}.g_idx",)
        unpack = partial(
            _gptq, name=name, path=path, bits=bits, added=GPTQ_FORMATS[stated], size=size
        )
        yield (
            f"{name}.weight",
            _weight(source, name, (n_out, n_in), f"GPTQ-{bits}", optional, unpack),
        )


def awq_weights(
    source: SafetensorsSource, settings: Mapping[str, Any], path: str
) -> Iterator[tuple[str, PackedWeight]]:
    """Yield the weights that AWQ has packed.

    Raises:
        CheckpointError: parts do not fit each other, or are laid out for one kernel alone.
    """
    bits, version = settings.get("bits", AWQ_BITS), str(settings.get("version", "gemm")).lower()
    if bits != AWQ_BITS or version != "gemm":
        raise CheckpointError(
            f"{path}: by its config AWQ's weights are laid out as {version[:40]!r} with "
            f"{str(bits)[:10]} bits; read is 'gemm' with {AWQ_BITS}. Use the model's unquantised "
            "files."
        )
    for name in _packed_names(source):
        n_in, n_words = source.tensors[f"{name}.qweight"].shape
        n_out = n_words * WORD // AWQ_BITS
        n_groups = _groups(source, name, path, (n_in, n_out), n_words)
        if n_in % n_groups:
            raise misfit(path, name, f"{n_groups} groups", f"a divisor of {n_in} inputs")
        unpack = partial(_awq, name=name)
        yield f"{name}.weight", _weight(source, name, (n_out, n_in), "AWQ-4", (), unpack)


def _packed_names(source: SafetensorsSource) -> list[str]:
    """Return the names of packed weights, without their endings."""
    found = [name.removesuffix(".qweight") for name in source.tensors if name.endswith(".qweight")]
    return [
        name
        for name in found
        if all(f"{name}.{part}" in source.tensors for part in ("qzeros", "scales"))
        and len(source.tensors[f"{name}.qweight"].shape) == 2
    ]


def _bits(words: tuple[int, ...], inputs: tuple[int, ...]) -> int | None:
    if len(inputs) != 1 or inputs[0] == 0 or (words[0] * WORD) % inputs[0]:
        return None
    return words[0] * WORD // inputs[0]


def _is_group_size(size: object, n_in: int, n_groups: int) -> bool:
    if not isinstance(size, int):
        return False
    return n_groups == 1 if size < 1 else -(-n_in // size) == n_groups


def _groups(
    source: SafetensorsSource, name: str, path: str, size: tuple[int, int], zero_words: int
) -> int:
    """Return the number of groups, once all parts are of one weight and of the types they need."""
    _, n_out = size
    words, zeros, scales = (source.tensors[f"{name}.{p}"] for p in ("qweight", "qzeros", "scales"))
    n_groups = scales.shape[0] if scales.shape else 0
    if 0 in size or n_groups == 0 or scales.shape != (n_groups, n_out):
        raise misfit(path, name, f"scales of shape {list(scales.shape)}", f"[groups, {n_out}]")
    if zeros.shape != (n_groups, zero_words):
        raise misfit(path, name, f"zeros of shape {list(zeros.shape)}", str([n_groups, zero_words]))
    types = (words.dtype, zeros.dtype, scales.dtype)
    if types[:2] != ("I32", "I32") or types[2] not in FLOATS:
        raise misfit(path, name, f"parts of types {types}", "I32, I32 and floating point")
    return n_groups


def _weight(
    source: SafetensorsSource,
    name: str,
    shape: tuple[int, int],
    kind: str,
    optional: tuple[str, ...],
    unpack: Callable[[Mapping[str, Tensor]], Tensor],
) -> PackedWeight:
    parts = (f"{name}.qweight", f"{name}.qzeros", f"{name}.scales", *optional)
    return of_parts(source, shape, kind, parts, unpack)


def _gptq(
    parts: Mapping[str, Tensor], *, name: str, path: str, bits: int, added: int, size: int
) -> Tensor:
    numbers = _unpacked(parts[f"{name}.qweight"].T, bits).T
    zeros = (_unpacked(parts[f"{name}.qzeros"], bits) + added) & (2**bits - 1)
    n_in, n_groups = len(numbers), len(zeros)
    if f"{name}.g_idx" not in parts:
        groups = torch.arange(n_in) // (size if size > 0 else n_in)
    else:
        groups = parts[f"{name}.g_idx"].long()
        if not bool(((groups >= 0) & (groups < n_groups)).all()):
            raise misfit(path, name, "inputs in groups that are not there", f"0 to {n_groups - 1}")
    return _scaled(numbers, zeros, parts[f"{name}.scales"], groups)


def _awq(parts: Mapping[str, Tensor], *, name: str) -> Tensor:
    numbers, zeros = (_in_order(parts[f"{name}.{part}"]) for part in ("qweight", "qzeros"))
    groups = torch.arange(len(numbers)) // (len(numbers) // len(zeros))
    return _scaled(numbers, zeros, parts[f"{name}.scales"], groups)


def _in_order(words: Words) -> Numbers:
    places = _unpacked(words, AWQ_BITS).unflatten(1, (-1, len(AWQ_ORDER)))
    numbers = torch.empty_like(places)
    numbers[..., list(AWQ_ORDER)] = places
    return numbers.flatten(1)


def _words(bits: int) -> int:
    """Return how many words hold a whole number of numbers."""
    return bits // math.gcd(bits, WORD)


def _unpacked(words: Words, bits: int) -> Numbers:
    """Return the numbers in rows of words: a stream of bits, from the lowest of each word on."""
    # As many words as hold a whole number of numbers: `bits` of them hold 32.
    blocks = words.unflatten(1, (-1, bits))
    numbers = torch.empty((*blocks.shape[:2], WORD), dtype=torch.uint8)
    mask = 2**bits - 1
    for place in range(WORD):
        word, shift = divmod(place * bits, WORD)
        value = blocks[..., word] >> shift
        if (
            shift + bits > WORD
        ):  # the rest is in the next word; the shift brought copies of the sign
            value = (value & (2 ** (WORD - shift) - 1)) | (blocks[..., word + 1] << (WORD - shift))
        numbers[..., place] = (value & mask).to(torch.uint8)
    return numbers.flatten(1)


def _scaled(
    numbers: Numbers,
    zeros: Numbers,
    scales: Tensor,
    groups: Integer[Tensor, " _"],
) -> Tensor:
    """Return scales * (numbers - zeros) with outputs as rows; exact for scales of 16 bits."""
    weight = torch.empty(numbers.shape, dtype=torch.float32)
    zeros, scales = zeros.to(torch.float32), scales.to(torch.float32)
    step = max(1, CHUNK // numbers.shape[1])
    for rows, own, group in zip(
        weight.split(step), numbers.split(step), groups.split(step), strict=True
    ):
        torch.sub(own.to(torch.float32), zeros[group], out=rows)
        rows *= scales[group]
    return weight.T
