"""Files of a film: a page or image that moves (.html, .gif, .mp4), or a still (.png).

Enters: a `Film`. Leaves: a file, written whole or not at all.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orbitlens.draw.film import Film
from orbitlens.draw.film_html import film_page
from orbitlens.draw.film_image import ffmpeg_binary, write_gif, write_mp4, write_png
from orbitlens.errors import InputError, MissingPackageError


@dataclass(frozen=True, kw_only=True)
class FilmKind:
    """A kind of file: how it is written and what that takes."""

    write: Callable[[Film, Path], None]
    package: str = ""  # that it needs


def _write_html(film: Film, file: Path) -> None:
    file.write_text(film_page(film), encoding="utf-8")


KINDS: dict[str, FilmKind] = {
    ".html": FilmKind(write=_write_html),
    ".png": FilmKind(write=write_png, package="matplotlib"),
    ".gif": FilmKind(write=write_gif, package="matplotlib"),
    ".mp4": FilmKind(write=write_mp4, package="matplotlib"),
}


def film_kind(file: Path) -> FilmKind:
    """Return the kind of a plot file; ask before a long run, so as not to fail after it.

    Raises:
        InputError: no such kind.
        MissingPackageError: the kind needs a package that is not installed.
    """
    suffix = file.suffix.lower()
    if suffix not in KINDS:
        raise InputError(
            f"{file}: {suffix or 'no ending'} is not a kind of plot. Known: {', '.join(KINDS)}."
        )
    kind = KINDS[suffix]
    if kind.package and importlib.util.find_spec(kind.package) is None:
        raise MissingPackageError(
            f"a {suffix} plot needs {kind.package}: pip install 'orbitlens[plot]'"
        )
    if suffix == ".mp4" and not ffmpeg_binary():
        raise MissingPackageError("an .mp4 plot needs ffmpeg: pip install 'orbitlens[video]'")
    return kind


def write_film(film: Film, file: Path) -> None:
    """Write a film to a file whose ending says its kind, whole or not at all.

    Raises:
        InputError: no such kind, or the file cannot be written.
        MissingPackageError: the kind needs a package that is not installed.
    """
    kind = film_kind(file)
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
            made = Path(folder) / f"made{file.suffix}"
            kind.write(film, made)
            made.replace(file)
    except OSError as error:
        raise InputError(f"{file}: the plot cannot be written ({error}).") from error
