"""Images from files: .npy arrays and MNIST's own format -> tensors a vision model takes.

Enters: a file. Leaves: normalised images (image, channel, y, x), and images cut into patches and
put together again.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from orbitlens.errors import InputError

Images = Float[Tensor, "image channel y x"]


@dataclass(frozen=True)
class ImageFile:
    """A file that was given as images; a path alone may be text as well."""

    path: Path


def read_images(file: Path, *, mean: float, std: float) -> Images:
    """Return the images of a .npy file or of MNIST's own format (.gz or not), normalised."""
    return as_images(_array(file), str(file), mean=mean, std=std)


def as_images(raw: Tensor, where: str, *, mean: float, std: float) -> Images:
    """Return an array as images.

    Whole numbers are grey levels 0 to 255 and become (level / 255 - mean) / std; other numbers are
    taken as they are.

    Raises:
        InputError: the array has not the shape of images.
    """
    if raw.ndim == 3:
        raw = raw[:, None]
    if raw.ndim != 4 or raw.shape[0] == 0:
        raise InputError(
            f"{where}: holds an array of shape {list(raw.shape)}; expected images x height x "
            "width, or images x channels x height x width."
        )
    if raw.is_floating_point():
        return raw.float()
    return (raw.float() / 255 - mean) / std


def _array(file: Path) -> Tensor:
    import gzip

    import numpy as np

    try:
        if file.suffix == ".npy":
            return torch.from_numpy(np.load(file, allow_pickle=False))
        data = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InputError(f"{file}: the images cannot be read ({error}).") from error
    return _idx_array(data, file)


def _idx_array(data: bytes, file: Path) -> UInt8[Tensor, "image y x"]:
    """Read MNIST's format: 0, 0, type 8, number of axes, their sizes, then bytes."""
    if len(data) < 16 or data[:4] != b"\x00\x00\x08\x03":
        raise InputError(
            f"{file}: this is neither a .npy file nor a file of images as MNIST has them. "
            "Save the images with numpy.save, as images x channels x height x width."
        )
    sizes = [int.from_bytes(data[k : k + 4], "big") for k in (4, 8, 12)]
    if len(data) != 16 + sizes[0] * sizes[1] * sizes[2]:
        raise InputError(f"{file}: the file is cut off, or longer than its own header says.")
    return torch.frombuffer(bytearray(data[16:]), dtype=torch.uint8).reshape(sizes)


def image_shape(config: Any) -> tuple[int, int, int]:  # noqa: ANN401 - a config of transformers
    """Return (channels, height, width) of the images a model takes."""
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else tuple(size)
    return int(config.num_channels), int(height), int(width)


def patch_side(config: Any) -> int:  # noqa: ANN401 - a config of transformers
    """Return the side of the patches a model cuts images into."""
    patch = config.patch_size
    return int(patch if isinstance(patch, int) else patch[0])


def square_side(config: Any) -> int:  # noqa: ANN401 - a config of transformers
    """Return the side of the images a model takes.

    Raises:
        InputError: they are not square.
    """
    _, height, width = image_shape(config)
    if height != width:
        raise InputError(
            f"this model takes images of {height} x {width}; patches are put together as squares "
            "here, so only models of square images can be used."
        )
    return height


def patches_of_images(
    images: Float[Tensor, "batch channels height width"], patch: int
) -> Float[Tensor, "batch items channels patch patch"]:
    """Cut images into patches, row by row."""
    batch, channels, height, width = images.shape
    if height % patch or width % patch:
        raise InputError(f"images of {height} x {width} do not cut into patches of {patch}.")
    cut = images.unfold(2, patch, patch).unfold(3, patch, patch)
    return cut.permute(0, 2, 3, 1, 4, 5).reshape(batch, -1, channels, patch, patch)


def image_of_patches(
    patches: Float[Tensor, "batch items channels patch patch"],
) -> Float[Tensor, "batch channels height width"]:
    """Put patches of square images together again, row by row."""
    batch, n_items, channels, patch, _ = patches.shape
    side = round(n_items**0.5)
    grid = patches.reshape(batch, side, side, channels, patch, patch)
    return grid.permute(0, 3, 1, 4, 2, 5).reshape(batch, channels, side * patch, side * patch)
