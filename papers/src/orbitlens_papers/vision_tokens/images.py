"""Digits to learn from and to be judged on: MNIST's own files, or scikit-learn's small ones.

Enters: a file of images, or None. Leaves: `Digits`: a pool to draw labelled images from, and other
images to judge on. The two are drawn once, the same for all seeds.
"""

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.lab.tasks.images import ImageTask, digits
from orbitlens_papers.vision_tokens.claims import IMAGES, INSTEAD, LABELS

SIDE = 28
SMALL_PATCH, PATCH = 2, 7  # of 8 x 8 and of 28 x 28 pixels: 16 tokens either way
SMALL_POOL = 1000
FALLBACK = (
    f"Expected MNIST's {IMAGES} and {LABELS}; without a folder of data the study uses {INSTEAD}."
)


@dataclass(frozen=True, kw_only=True)
class Digits:
    """Images with labels, in two parts."""

    source: str  # in words
    patch: int
    pool: Float[Tensor, "image channel y x"] = field(repr=False)  # mean 0, deviation 1
    pool_labels: Int[Tensor, " image"] = field(repr=False)
    judged: Float[Tensor, "other channel y x"] = field(repr=False)
    judged_labels: Int[Tensor, " other"] = field(repr=False)

    @property
    def side(self) -> int:
        """Height and width of an image."""
        return int(self.pool.shape[-1])

    @property
    def n_pixels(self) -> int:
        """Pixels of a patch."""
        return self.patch**2


def read_digits(file: str | None) -> Digits:
    """Return MNIST's digits cut in half, or scikit-learn's where no file is given.

    They are kept, as long as the files do not change.

    Raises:
        InputError: the file, or the one of labels beside it, is not what it should be.
    """
    parts = () if file is None else (Path(file), Path(file).with_name(LABELS))
    sizes = [part.stat() for part in parts if part.is_file()]
    return _read(file, tuple((status.st_size, status.st_mtime_ns) for status in sizes))


@lru_cache(maxsize=2)
def _read(file: str | None, stamps: tuple[tuple[int, int], ...]) -> Digits:
    task = digits(patch=SMALL_PATCH) if file is None else _mnist(Path(file))
    n = len(task.images)
    n_pool = SMALL_POOL if file is None else n // 2
    # MNIST's first half is cleaner than its second: the halves are drawn.
    order = torch.randperm(n, generator=torch.Generator().manual_seed(0))
    kept, other = order[:n_pool], order[n_pool:]
    mean, deviation = task.images[kept].mean(), task.images[kept].std()
    images = (task.images - mean) / deviation
    return Digits(
        source=INSTEAD if file is None else f"MNIST's {n:,} test digits, 28 x 28 pixels",
        patch=task.patch,
        pool=images[kept],
        pool_labels=task.labels[kept],
        judged=images[other],
        judged_labels=task.labels[other],
    )


def _mnist(path: Path) -> ImageTask:
    try:
        task = digits(file=str(path), patch=PATCH)
    except InputError as error:
        raise InputError(f"{error} {FALLBACK}") from error
    if task.image.size != SIDE or task.image.labels != 10:
        raise InputError(
            f"{path}: images of {task.image.size} x {task.image.size} pixels with labels up to "
            f"{task.image.labels - 1}; expected 28 x 28 and 0 to 9. {FALLBACK}"
        )
    return task
