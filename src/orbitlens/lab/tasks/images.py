"""Handwritten digits: scikit-learn's 8 x 8, inside the package, or MNIST's own files.

Enters: nothing, or an idx file of images beside one of labels. Leaves: an `ImageTask`. The split of
an image is read off a hash of its pixels, so that two equal images are never in two splits.
"""

import gzip
import hashlib
import zlib
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import as_file, files
from pathlib import Path
from typing import IO, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.lab.tasks.base import (
    SPLITS,
    Batch,
    Ceiling,
    ImageShape,
    Split,
    batch_generator,
    in_split,
    row_keys,
)

IDX_IMAGES, IDX_LABELS = 2051, 2049  # the magic numbers of the two formats
MOST_BYTES = 60_000_000  # unpacked: MNIST's larger file, and a little more


@dataclass(frozen=True, kw_only=True)
class ImageTask:
    """Images with a label each."""

    name: str
    images: Float[Tensor, "image channel y x"] = field(repr=False)  # mean 0, deviation 1
    labels: Int[Tensor, " image"] = field(repr=False)
    members: dict[Split, Int[Tensor, " some"]] = field(repr=False)
    patch: int
    kind: Literal["images"] = "images"
    vocab_size: int = 0
    ceiling: Ceiling | None = None
    by_token: bool = False

    @property
    def image(self) -> ImageShape:
        """The shape of images."""
        _, channels, size, _ = self.images.shape
        labels = int(self.labels.max()) + 1
        return ImageShape(size=size, patch=self.patch, channels=channels, labels=labels)

    @property
    def n_positions(self) -> int:
        """Patches of an image."""
        return (self.image.size // self.patch) ** 2

    def n_examples(self, split: Split) -> int:
        """Return the number of images in a split."""
        return len(self.members[split])

    def batch(self, split: Split, index: int, size: int, seed: int) -> Batch:
        """Return batch number `index` of a split: drawn to train, in turn to judge."""
        members = self.members[split]
        if split == "train":
            generator = batch_generator(self.name, split, index, seed)
            chosen = torch.randint(0, len(members), (size,), generator=generator)
        else:
            chosen = (index * size + torch.arange(size)) % len(members)
        places = members[chosen]
        return Batch(inputs=self.images[places], targets=self.labels[places])


def digits(*, file: str | None = None, patch: int | None = None) -> ImageTask:
    """Return handwritten digits: scikit-learn's, or `file` in MNIST's format (.gz or not)."""
    pixels, labels = _embedded() if file is None else _mnist(Path(file))
    size = pixels.shape[1]
    width = patch or max(1, size // 4)
    if size % width:
        raise InputError(
            f"patch={width}: images of {size} x {size} do not split into such patches."
        )
    keys = row_keys(torch.from_numpy(pixels.reshape(len(pixels), -1).astype(np.int64)))
    members: dict[Split, Tensor] = {
        split: in_split(keys, split).nonzero()[:, 0] for split in SPLITS
    }
    if not all(len(places) for places in members.values()):
        raise InputError(f"{file}: {len(pixels)} images are too few for three splits.")
    grey = torch.from_numpy(pixels).float()[:, None]
    seen = grey[members["train"]]
    # The package's own labels are as fixed as its pixels; a file's may be others for equal images.
    content = pixels.tobytes() + (b"" if file is None else labels.tobytes())
    return ImageTask(
        name=f"digits-{hashlib.sha256(content).hexdigest()[:12]}-{width}",
        images=(grey - seen.mean()) / seen.std(),
        labels=torch.from_numpy(labels.astype(np.int64)),
        members=members,
        patch=width,
    )


@cache
def _embedded() -> tuple[np.ndarray, np.ndarray]:
    with (
        as_file(files("orbitlens.lab") / "data" / "digits.npz") as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        return stored["images"], stored["labels"]


def _mnist(path: Path) -> tuple[np.ndarray, np.ndarray]:
    beside = path.with_name(path.name.replace("images-idx3", "labels-idx1"))
    if beside == path:
        raise InputError(
            f"{path}: the labels are looked for beside the images, so the name must contain "
            "'images-idx3', as in train-images-idx3-ubyte.gz."
        )
    images, labels = _idx(path, IDX_IMAGES), _idx(beside, IDX_LABELS)
    if len(images) != len(labels) or images.shape[1] != images.shape[2]:
        raise InputError(
            f"{path}: {list(images.shape)} pixels and {len(labels)} labels; expected square images "
            "and as many labels."
        )
    return images, labels


def _idx(path: Path, magic: int) -> np.ndarray:
    """Read an idx file: magic number and sizes, 4 bytes each, then one byte a number."""
    try:
        with path.open("rb") as file:
            is_packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            reader: gzip.GzipFile | IO[bytes] = gzip.GzipFile(fileobj=file) if is_packed else file
            data = reader.read(MOST_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: this cannot be read ({error}).") from error
    if len(data) > MOST_BYTES:
        raise InputError(f"{path}: more than {MOST_BYTES:,} bytes once unpacked.")
    n_axes = magic % 256
    header = np.frombuffer(data[: 4 * (1 + n_axes)], dtype=">i4")
    if len(header) != 1 + n_axes or header[0] != magic:
        raise InputError(f"{path}: this is not an idx file of the kind {magic} (MNIST's format).")
    shape = tuple(int(n) for n in header[1:])
    body = np.frombuffer(data[4 * (1 + n_axes) :], dtype=np.uint8)
    if min(shape) < 1 or body.size != int(np.prod(shape)):
        raise InputError(
            f"{path}: {body.size} bytes follow the header, which promises {shape}. Is it whole?"
        )
    return body.reshape(shape).copy()  # torch wants to own what it reads
