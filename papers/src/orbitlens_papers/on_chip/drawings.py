"""Drawings of characters: Omniglot from its zip files, or nothing where they are not given.

Enters: files a user has, which nobody vouches for. Leaves: `Drawings`, ink as numbers from 0 to 1.
Members are read by name, in memory, one small picture at a time; nothing is unpacked to disk.
"""

import io
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens.errors import InputError, MissingPackageError
from orbitlens_papers.archive import DAMAGE, Archive, open_archive

SIDE = 105  # pixels of an Omniglot picture
KEPT = 35  # pixels of what is kept of it
N_DRAWERS = 20
PATH = re.compile(r"images_background_small[12]/([^/]+)/(character\d+)/\d+_(\d+)\.png")
LABELS = re.compile(r"(run\d\d)/class_labels\.txt")
FALLBACK = "Leave the folder of data out to use rendered glyphs instead."
BOUNDS = {"most_members": 50_000, "most_bytes": 100_000}

Pictures = Float[Tensor, "classes drawings height width"]


@dataclass(frozen=True)
class Drawings:
    """Classes of characters with their pictures, and the alphabet of each class."""

    pictures: Pictures  # ink, 0 to 1
    alphabets: tuple[str, ...]  # one a class; empty where there are none
    source: str  # in words

    @property
    def is_drawn(self) -> bool:
        """Whether a class has drawings that differ, or one picture only."""
        return self.pictures.shape[1] > 1


@dataclass(frozen=True)
class OneShotRun:
    """One run of the official test: a picture a class, test pictures, and their classes."""

    taught: Float[Tensor, "classes height width"]  # black and white, full size
    asked: Float[Tensor, "items height width"]
    answers: Int[Tensor, " items"]


# --- the background sets ---------------------------------------------------------------------


@lru_cache(maxsize=2)
def omniglot(files: tuple[Path, ...]) -> Drawings:
    """Return all characters of the given background sets; alphabets in both are taken once.

    Raises:
        InputError: a file is broken, or is something else.
    """
    classes: dict[tuple[str, str], dict[int, Tensor]] = {}
    for file in files:
        with open_archive(file, **BOUNDS, advice=FALLBACK) as archive:
            matches = [(m, name) for name in archive.names if (m := PATH.fullmatch(name))]
            if not matches:
                raise _foreign(archive, "images_background_small1/Greek/character01/….png")
            for match, name in matches:
                character, drawer = (match[1], match[2]), int(match[3])
                if drawer not in classes.setdefault(character, {}):
                    classes[character][drawer] = _shrunk(_picture(archive, name))
    complete = {key: drawn for key, drawn in sorted(classes.items()) if len(drawn) >= N_DRAWERS}
    if len({alphabet for alphabet, _ in complete}) < 3:
        raise InputError(
            f"{', '.join(f.name for f in files)}: {len(complete)} characters with {N_DRAWERS} "
            f"drawings each; expected those of at least three alphabets. {FALLBACK}"
        )
    rows = [
        torch.stack([drawn[k] for k in sorted(drawn)[:N_DRAWERS]]) for drawn in complete.values()
    ]
    names = tuple(alphabet for alphabet, _ in complete)
    return Drawings(torch.stack(rows), names, _source(files, names))


def _source(files: tuple[Path, ...], names: tuple[str, ...]) -> str:
    return (
        f"Omniglot ({' and '.join(file.name for file in files)}): {len(names)} characters of "
        f"{len(set(names))} alphabets, {N_DRAWERS} drawings each"
    )


# --- the official test -----------------------------------------------------------------------


@lru_cache(maxsize=2)
def oneshot_runs(file: Path) -> tuple[OneShotRun, ...]:
    """Return the runs of the official one-shot test.

    Raises:
        InputError: the file is broken, or is something else.
    """
    with open_archive(file, **BOUNDS, advice=FALLBACK) as archive:
        names = [m for name in archive.names if (m := LABELS.fullmatch(name))]
        if not names:
            raise _foreign(archive, "run01/class_labels.txt")
        return tuple(_run(archive, match) for match in sorted(names, key=lambda m: m[1]))


def _run(archive: Archive, labels: re.Match[str]) -> OneShotRun:
    lines = archive.read(labels[0]).decode("ascii", errors="replace").splitlines()
    pairs = [tuple(line.split()) for line in lines if line.strip()]
    if not pairs or any(len(pair) != 2 for pair in pairs):
        raise archive.refusal(
            f"{labels[0]} holds {lines[:1]}; expected lines of a test picture and a training "
            "picture"
        )
    classes = sorted({taught for _, taught in pairs})
    return OneShotRun(
        taught=torch.stack([_picture(archive, name) for name in classes]),
        asked=torch.stack([_picture(archive, name) for name, _ in pairs]),
        answers=torch.tensor([classes.index(taught) for _, taught in pairs]),
    )


# --- reading ---------------------------------------------------------------------------------


def _foreign(archive: Archive, expected: str) -> InputError:
    names = archive.names
    first = f", the first of them {names[0]!r}" if names else ""
    return archive.refusal(f"{len(names)} members{first}; expected Omniglot's, such as {expected}")


def _picture(archive: Archive, name: str) -> Float[Tensor, "height width"]:
    """Return the ink of one picture: 1 where it is black."""
    content = archive.read(name)
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingPackageError("pictures need Pillow: pip install pillow") from error
    try:
        with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
            if image.size != (SIDE, SIDE):  # before anything is decoded
                raise archive.refusal(
                    f"{name} is {image.size[0]} x {image.size[1]} pixels; expected {SIDE} x {SIDE}"
                )
            return torch.from_numpy(np.asarray(image.convert("L")) < 128).float()
    except (*DAMAGE, SyntaxError) as error:  # what Pillow's reader raises
        raise archive.refusal(f"{name} is no picture ({error})") from error


def _shrunk(ink: Float[Tensor, "height width"]) -> Float[Tensor, "small small"]:
    """Return the picture at a third of its size: means of 3 x 3 pixels."""
    return functional.avg_pool2d(ink[None], SIDE // KEPT)[0]
