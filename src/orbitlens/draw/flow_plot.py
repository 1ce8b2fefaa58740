"""Pictures of a flow: tokens on the move, and their distance and energy beside them.

Enters: a `FlowPicture`. Leaves: a file that moves (.html, .gif, .mp4) or stands still (.png),
written whole or not at all.
"""

import importlib.util
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from orbitlens.draw.flow_html import write_html
from orbitlens.draw.flow_image import ffmpeg_binary, write_gif, write_mp4, write_png
from orbitlens.draw.flow_picture import FlowPicture
from orbitlens.errors import InputError, MissingPackageError


@dataclass(frozen=True, kw_only=True)
class PlotKind:
    """A kind of file: how it is written and what that takes."""

    write: Callable[[FlowPicture, Path], None]
    package: str


KINDS: dict[str, PlotKind] = {
    ".html": PlotKind(write=write_html, package="plotly"),
    ".png": PlotKind(write=write_png, package="matplotlib"),
    ".gif": PlotKind(write=write_gif, package="matplotlib"),
    ".mp4": PlotKind(write=write_mp4, package="matplotlib"),
}


def plot_kind(file: Path) -> PlotKind:
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
    if importlib.util.find_spec(kind.package) is None:
        raise MissingPackageError(
            f"a {suffix} plot needs {kind.package}: pip install 'orbitlens[plot]'"
        )
    if suffix == ".mp4" and not ffmpeg_binary():
        raise MissingPackageError("an .mp4 plot needs ffmpeg: pip install 'orbitlens[video]'")
    return kind


def write_flow_plot(picture: FlowPicture, file: Path) -> None:
    """Write a picture to a file whose ending says its kind, whole or not at all.

    Raises:
        InputError: no such kind, or the file cannot be written.
        MissingPackageError: the kind needs a package that is not installed.
    """
    kind = plot_kind(file)
    try:
        with tempfile.TemporaryDirectory(dir=file.parent, prefix=f".{file.name}.") as folder:
            made = Path(folder) / f"made{file.suffix}"
            kind.write(picture, made)
            made.replace(file)
    except OSError as error:
        raise InputError(f"{file}: the plot cannot be written ({error}).") from error
