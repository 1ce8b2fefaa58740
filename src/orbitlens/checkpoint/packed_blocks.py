"""bitsandbytes: weights as places in a table of sixteen numbers, or as bytes with a scale a row.

Enters: a `SafetensorsSource`. Leaves: `PackedWeight`s by the name of the weight. Four bits (nf4,
fp4): two numbers a byte, the first in the upper half; all numbers of a weight in blocks of equal
length, each with its largest size,

    weight[n] = table[q[n]] * absmax[n // blocksize]

and absmax either stored or itself such blocks of bytes, with an offset. Eight bits: weight[o, i] =
q[o, i] * SCB[o] / 127. A small JSON text beside each weight of four bits says its shape and blocks.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from orbitlens.checkpoint.packed_weight import CHUNK, PackedWeight, misfit, of_parts
from orbitlens.checkpoint.safetensors_file import SafetensorsSource

STATE = ".quant_state.bitsandbytes__"
TABLES = ("nf4", "fp4")
LARGEST_STATE = 4096  # bytes of a weight's JSON text
BYTE_RANGE = 127.0


@dataclass(frozen=True, kw_only=True)
class BlockState:
    """What the JSON text beside a weight of four bits says."""

    shape: tuple[int, ...]
    block: int  # numbers that share a size
    nested_block: int | None  # sizes that share a size of their own; None: they are stored
    offset: float  # added to nested sizes

    @property
    def n_blocks(self) -> int:
        """Number of blocks, the last perhaps not full."""
        return -(-math.prod(self.shape) // self.block)


def bitsandbytes_weights(
    source: SafetensorsSource, settings: Mapping[str, Any], path: str
) -> Iterator[tuple[str, PackedWeight]]:
    """Yield the weights that bitsandbytes has packed, whether in four or in eight bits.

    Raises:
        CheckpointError: parts do not fit each other.
    """
    for state_name in [name for name in source.tensors if STATE in name]:
        name, _, kind = state_name.partition(STATE)
        if kind in TABLES and name in source.tensors:
            yield name, _four_bits(source, name, kind, path)
    for name, info in source.tensors.items():
        scale = name.removesuffix("weight") + "SCB"
        if info.dtype == "I8" and len(info.shape) == 2 and scale in source.tensors:
            if source.tensors[scale].shape != info.shape[:1]:
                shape = list(source.tensors[scale].shape)
                raise misfit(path, name, f"scales of shape {shape}", str([info.shape[0]]))
            layout = name.removesuffix("weight") + "weight_format"
            extra = (layout,) if layout in source.tensors else ()
            unpack = partial(_eight_bits, name=name, scale=scale, path=path)
            parts = (name, scale, *extra)
            yield name, of_parts(source, info.shape, "bitsandbytes-int8", parts, unpack)


def _four_bits(source: SafetensorsSource, name: str, kind: str, path: str) -> PackedWeight:
    state = _state(source, f"{name}{STATE}{kind}", name, path)
    absmax = source.tensors.get(f"{name}.absmax")
    table = source.tensors.get(f"{name}.quant_map")
    n_numbers = math.prod(state.shape)
    if source.tensors[name].dtype != "U8" or source.tensors[name].n_bytes != -(-n_numbers // 2):
        found = f"{source.tensors[name].n_bytes} bytes of {source.tensors[name].dtype}"
        raise misfit(path, name, found, f"U8, two numbers a byte, of {list(state.shape)}")
    if table is None or table.shape != (16,) or table.dtype != "F32":
        raise misfit(path, name, "no table", "16 numbers of type F32")
    is_nested = state.nested_block is not None
    if absmax is None or (absmax.shape, absmax.dtype) != (
        (state.n_blocks,),
        "U8" if is_nested else "F32",
    ):
        raise misfit(path, name, "no fitting sizes of blocks", f"{state.n_blocks} of them")
    parts: tuple[str, ...] = (name, f"{name}.absmax", f"{name}.quant_map", f"{name}{STATE}{kind}")
    if state.nested_block is not None:
        sizes = source.tensors.get(f"{name}.nested_absmax")
        places = source.tensors.get(f"{name}.nested_quant_map")
        n_sizes = -(-state.n_blocks // state.nested_block)
        if sizes is None or sizes.shape != (n_sizes,) or places is None or places.shape != (256,):
            raise misfit(path, name, "no fitting nested sizes", f"{n_sizes}, and a table of 256")
        parts = (*parts, f"{name}.nested_absmax", f"{name}.nested_quant_map")
    unpack = partial(_from_blocks, name=name, state=state)
    return of_parts(source, state.shape, f"bitsandbytes-{kind}", parts, unpack)


def _state(source: SafetensorsSource, state_name: str, name: str, path: str) -> BlockState:
    info = source.tensors[state_name]
    if info.dtype != "U8" or info.n_bytes > LARGEST_STATE:
        raise misfit(path, name, f"{info.n_bytes} bytes of settings", f"at most {LARGEST_STATE}")
    try:
        data = json.loads(bytes(source.stored(state_name).flatten().tolist()).decode("utf-8"))
        nested = data.get("nested_blocksize")
        shape, block = tuple(data["shape"]), data["blocksize"]
        offset = 0.0 if nested is None else float(data["nested_offset"])
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise misfit(path, name, f"settings that are none ({error!r})", "a JSON object") from error
    sizes = (*shape, block, 1 if nested is None else nested)
    if not all(type(size) is int and 0 < size < 2**40 for size in sizes):
        raise misfit(path, name, f"settings with sizes {list(sizes)}", "positive whole numbers")
    return BlockState(shape=shape, block=block, nested_block=nested, offset=offset)


def _from_blocks(parts: Mapping[str, Tensor], *, name: str, state: BlockState) -> Tensor:
    packed, table = parts[name].flatten(), parts[f"{name}.quant_map"]
    sizes = parts[f"{name}.absmax"]
    if state.nested_block is not None:
        outer = parts[f"{name}.nested_absmax"].to(torch.float32)
        places = parts[f"{name}.nested_quant_map"].to(torch.float32)
        spread = outer.repeat_interleave(state.nested_block)[: len(sizes)]
        sizes = places[sizes.long()] * spread + state.offset
    n_numbers = math.prod(state.shape)
    weight = torch.empty(2 * len(packed), dtype=torch.float32)
    for pairs, own in zip(weight.split(2 * CHUNK), packed.split(CHUNK), strict=True):
        both = torch.stack([own >> 4, own & 15], dim=1).flatten().int()
        torch.index_select(table, 0, both, out=pairs)
    weight = weight[:n_numbers]
    for start in range(0, state.n_blocks, step := max(1, CHUNK // state.block)):
        own = weight[start * state.block : (start + step) * state.block]
        own *= sizes[start : start + step].repeat_interleave(state.block)[: len(own)]
    return weight.reshape(state.shape)


def _eight_bits(parts: Mapping[str, Tensor], *, name: str, scale: str, path: str) -> Tensor:
    for part, value in parts.items():
        if part.endswith("weight_format") and bool(value.any()):
            raise misfit(path, name, "its rows in the order of one kernel", "rows as they are (0)")
    return parts[name].to(torch.float32) * parts[scale].to(torch.float32)[:, None] / BYTE_RANGE
