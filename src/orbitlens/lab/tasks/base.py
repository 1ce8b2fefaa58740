"""What every task shares: batches, splits that cannot overlap, and cutting at the last position.

Enters: nothing (plain data) or batches. Leaves: `Batch`, seeds, splits. A batch is a pure function
of (split, index, size, seed), so a run that is resumed needs no sampler state. `targets[i]` is what
should be predicted *at* position i, from the tokens up to i; -100 where nothing is judged.
"""

import hashlib
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Split = Literal["train", "valid", "test"]
SPLITS: tuple[Split, ...] = ("train", "valid", "test")
SHARES = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}  # per cent of all examples
NOT_JUDGED = -100


@dataclass(frozen=True, kw_only=True)
class Batch:
    """Examples: token ids with a target a position, or images with a label each."""

    inputs: Int[Tensor, "batch tokens"] | Float[Tensor, "batch channel y x"]
    targets: Int[Tensor, "batch tokens"] | Int[Tensor, " batch"]


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """The best that any predictor can do which sees tokens, but not their order."""

    exact_match: float  # share of whole answers
    token_accuracy: float  # share of answer tokens, each from all tokens before it
    loss: float  # nats a token; no such predictor gets below it


@dataclass(frozen=True, kw_only=True)
class ImageShape:
    """What a model must know of images."""

    size: int
    patch: int
    channels: int
    labels: int


def stream_seed(name: str, split: Split, index: int, seed: int) -> int:
    """Return the seed of one batch: 63 bits of a hash, so that no two streams run in step."""
    digest = hashlib.sha256(f"{name}/{split}/{seed}/{index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def batch_generator(name: str, split: Split, index: int, seed: int) -> torch.Generator:
    """Return the random numbers of one batch."""
    return torch.Generator().manual_seed(stream_seed(name, split, index, seed))


def in_split(keys: Int[Tensor, " batch"], split: Split) -> Bool[Tensor, " batch"]:
    """Say which keys belong to a split: equal keys always do to the same one.

    A key is mixed by splitmix64's finaliser (Steele et al. 2014) and reduced to a percentage.
    """
    low, high = SHARES[split]
    percent = _mixed(keys) % 100
    return (percent >= low) & (percent < high)


def row_keys(rows: Int[Tensor, "batch tokens"]) -> Int[Tensor, " batch"]:
    """Return one number for each row; equal rows have equal numbers."""
    keys = torch.full((rows.shape[0],), rows.shape[1], dtype=torch.int64)
    for column in rows.unbind(dim=1):
        keys = keys * 1_000_003 + column + 1  # wraps around, as hashes do
    return keys


def _mixed(keys: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    """Return 62 well-mixed bits of each key."""
    z = keys + _signed(0x9E3779B97F4A7C15)
    z = (z ^ _shifted(z, 30)) * _signed(0xBF58476D1CE4E5B9)
    z = (z ^ _shifted(z, 27)) * _signed(0x94D049BB133111EB)
    return _shifted(z ^ _shifted(z, 31), 2)


def _shifted(z: Int[Tensor, " batch"], bits: int) -> Int[Tensor, " batch"]:
    return (z >> bits) & ((1 << (64 - bits)) - 1)  # torch keeps the sign; the mask drops it


def _signed(number: int) -> int:
    return number - (1 << 64) if number >> 63 else number


def judged_columns(targets: Int[Tensor, "batch tokens"]) -> list[int]:
    """Return the positions at which something is judged; the same ones in every row."""
    return (targets[0] != NOT_JUDGED).nonzero()[:, 0].tolist()


def cut_at(batch: Batch, column: int) -> Batch:
    """Return the batch up to one position, judged there alone.

    With a full mask every position sees every token, so an answer inside the input would be copied.
    Here the answer, and all after it, is not in the input at all.
    """
    targets = torch.full_like(batch.targets[:, : column + 1], NOT_JUDGED)
    targets[:, column] = batch.targets[:, column]
    return Batch(inputs=batch.inputs[:, : column + 1], targets=targets)
