"""Letters of all scripts that one font has, rendered: what takes the place of drawings.

Enters: nothing but the font that matplotlib ships. Leaves: `Drawings` with one picture a class; two
shown pictures of a class differ by their random turn, shear, size and place.
"""

import unicodedata
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orbitlens.errors import MissingPackageError
from orbitlens_papers.on_chip.drawings import Drawings

Picture = NDArray[np.uint8]
SIDE = 40
POINTS = 30  # height of the letters
NEEDS = "glyphs need {0}: pip install {0}, or give a folder with Omniglot"


def font_file() -> Path:
    """Return the font that matplotlib ships."""
    spec = find_spec("matplotlib")
    if spec is None or spec.origin is None:
        raise MissingPackageError(NEEDS.format("matplotlib"))
    return Path(spec.origin).parent / "mpl-data" / "fonts" / "ttf" / "DejaVuSans.ttf"


@lru_cache(maxsize=2)
def make_glyphs(most: int) -> Drawings:
    """Return the letters of the font, evenly picked down to `most`; empty and equal ones once."""
    try:
        from fontTools.ttLib import TTFont
        from PIL import ImageFont
    except ImportError as error:
        raise MissingPackageError(NEEDS.format("pillow fonttools")) from error
    file = font_file()
    with TTFont(file, lazy=True) as table:
        codes = sorted(table.getBestCmap())
    letters = [code for code in codes if unicodedata.category(chr(code)).startswith("L")]
    font = ImageFont.truetype(str(file), POINTS)
    step = max(1, len(letters) // most)
    pictures: dict[bytes, Picture] = {}
    for code in letters[::step]:
        rendered = _rendered(chr(code), font)
        if rendered is not None:
            pictures.setdefault(rendered.tobytes(), rendered)
    kept = list(pictures.values())[:most]
    stacked = torch.from_numpy(np.stack(kept)).float() / 255
    words = f"{len(kept)} letters rendered from the font DejaVu Sans, in random poses"
    return Drawings(stacked[:, None], (), words)


def _rendered(letter: str, font: Any) -> Picture | None:  # noqa: ANN401 - of Pillow
    """Return a letter in the middle of a picture; None where there is nothing to see."""
    from PIL import Image, ImageDraw

    image = Image.new("L", (SIDE, SIDE))
    ImageDraw.Draw(image).text((SIDE / 2, SIDE / 2), letter, fill=255, font=font, anchor="mm")
    drawn = np.asarray(image)
    return drawn if drawn.any() else None
