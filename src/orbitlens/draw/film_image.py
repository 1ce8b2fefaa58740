"""A film as a still (PNG) or moving (GIF, MP4) image, by matplotlib."""

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from orbitlens.draw.figure import GREY, GRID, INK, MUTED, ORANGE, PALETTE, PAPER, Panel
from orbitlens.draw.figure_png import MARKERS, draw_panel
from orbitlens.draw.film import (
    FAR_SIZE,
    FEW,
    FRAME_MS,
    HOLD_FRAMES,
    Film,
    both_sides,
    nearness,
)
from orbitlens.errors import InputError

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL.Image import Image

INCHES = (9.0, 5.0)
STILL_DPI, MOVING_DPI = 200, 100


class _Drawing:
    """The film drawn by matplotlib; what moves is redrawn over a kept background."""

    def __init__(self, film: Film, dpi: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import to_rgba_array
        from matplotlib.figure import Figure

        self.film = film
        self.colours = to_rgba_array(film.colours)
        self.figure = Figure(figsize=INCHES, dpi=dpi, facecolor=PAPER)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes, self.sides = self._places()
        _draw_words(self.figure, film)
        draw_panel(self.axes, film.plane)
        for axes, side in zip(self.sides, film.sides, strict=True):
            _draw_side(axes, side)
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(self.figure.bbox)

    def _places(self) -> "tuple[Axes, list[Axes]]":
        main = self.figure.add_axes((0.06, 0.115, 0.46, 0.695))
        bottoms = (0.52, 0.13)[: len(self.film.sides)]
        return main, [self.figure.add_axes((0.63, b, 0.34, 0.255)) for b in bottoms]

    def image(self, frame: int) -> NDArray[np.uint8]:
        """Return the pixels of a frame."""
        self.canvas.restore_region(self.background)
        artists = [(self.axes, a) for a in (*self._ways(frame), *self._points(frame))]
        for axes, side in zip(self.sides, self.film.sides, strict=True):
            artists += [(axes, a) for a in self._moment(axes, side, frame)]
        for axes, artist in artists:
            axes.draw_artist(artist)
            artist.remove()
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()

    def _ways(self, frame: int) -> "Iterator[Artist]":
        """Yield points' whole ways, pale, and over them their trails, which fade with age."""
        from matplotlib.collections import LineCollection

        length, history = self.film.trail_length, self.film.history_opacity
        for positions, opacity in both_sides(self.film):
            whole = positions[: frame + 1].transpose(1, 0, 2)
            shades = self.colours * [1, 1, 1, opacity * history]
            yield self.axes.add_collection(
                LineCollection(list(whole), colors=shades, linewidths=0.9)
            )
            recent = positions[max(0, frame - length) : frame + 1]
            pieces = np.stack([recent[:-1], recent[1:]], axis=2)  # steps, points, ends, axes
            age = np.arange(len(pieces), 0, -1) / length
            fade = 0.7 * opacity * np.clip(1 - age, 0, 1)[:, None, None] * [0, 0, 0, 1]
            shades = (self.colours * [1, 1, 1, 0] + fade).reshape(-1, 4)
            lines = LineCollection(list(pieces.reshape(-1, 2, 2)), colors=shades, linewidths=0.9)
            yield self.axes.add_collection(lines)

    def _points(self, frame: int) -> "Iterator[Artist]":
        depth, colours = self.film.depth, self.colours.copy()
        sizes = np.full(len(colours), 26.0 if len(colours) <= FEW else 14.0)
        if depth is not None:
            near = nearness(depth[frame])
            colours[:, 3] = 0.4 + 0.6 * near
            sizes *= (FAR_SIZE + (1 - FAR_SIZE) * near) ** 2  # areas here, widths on a page
        x, y = self.film.positions[frame].T
        symbols = np.array(self.film.symbols)
        style: dict[str, Any] = {
            "edgecolors": PAPER,
            "linewidths": 0.6,
            "zorder": 3,
            "clip_on": False,
        }
        for symbol in np.unique(symbols):
            i = symbols == symbol
            yield self.axes.scatter(
                x[i], y[i], s=sizes[i], c=colours[i], marker=MARKERS[str(symbol)], **style
            )

    def _moment(self, axes: "Axes", side: Panel, frame: int) -> "Iterator[Artist]":
        now, value = self.film.times[frame], self.film.curve_of(side).y[frame]
        yield axes.axvline(now, color=ORANGE, linewidth=0.9)
        if value is not None:
            yield from axes.plot([now], [value], "o", color=ORANGE, ms=4.5)


def _draw_words(figure: "Figure", film: Film) -> None:
    def write(x: float, y: float, words: str, **style: Any) -> float:  # noqa: ANN401
        # A dollar sign in a title is a dollar sign.
        text = figure.text(x, y, words, parse_math=False, va="top", **style)
        return float(text.get_window_extent().x1 / figure.bbox.width)

    write(0.03, 0.965, _clipped(film.title, 88), fontsize=12.5, color=INK, weight="bold")
    write(0.03, 0.905, _clipped(film.subtitle, 130), fontsize=9, color=INK)
    write(0.03, 0.035, _clipped(film.notes, 170), fontsize=7, color=MUTED)
    x = 0.03
    for colour, words in film.legend:
        if colour:
            x = 0.006 + write(x, 0.864, "●", fontsize=8, color=colour)
        x = 0.016 + write(x, 0.861, words, fontsize=8, color=MUTED)


def _clipped(words: str, most: int) -> str:
    """Return words on one line, cut where it ends."""
    line = " ".join(words.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _draw_side(axes: "Axes", side: Panel) -> None:
    from matplotlib.ticker import MaxNLocator

    draw_panel(axes, side)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.grid(axis="x", visible=False)


def write_png(film: Film, file: Path) -> None:
    """Write the last frame, with every token's whole way."""
    from PIL import Image

    pixels = _Drawing(film, STILL_DPI).image(len(film.times) - 1)
    Image.fromarray(pixels).save(file, format="PNG", optimize=True, dpi=(STILL_DPI, STILL_DPI))


def _moving_images(film: Film) -> Iterator[NDArray[np.uint8]]:
    drawing = _Drawing(film, MOVING_DPI)
    for frame in range(len(film.times)):
        yield drawing.image(frame)


def write_gif(film: Film, file: Path) -> None:
    """Write a loop; one palette for all frames, so that what stands still costs nothing."""
    from PIL import Image

    images = [Image.fromarray(pixels) for pixels in _moving_images(film)]
    palette = _palette([images[0], images[len(images) // 2], images[-1]])
    reduced = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in images]
    durations = [FRAME_MS] * (len(images) - 1) + [FRAME_MS * (1 + HOLD_FRAMES)]
    reduced[0].save(
        file, format="GIF", save_all=True, append_images=reduced[1:], duration=durations, loop=0
    )


def _palette(samples: "list[Image]") -> "Image":
    """Return an image whose palette has our own colours exactly, and the samples' shades."""
    from PIL import Image, ImageColor

    stacked = Image.fromarray(np.concatenate([np.asarray(image) for image in samples]))
    shades = np.reshape(stacked.quantize(112).getpalette() or [], (-1, 3))
    names = (PAPER, INK, MUTED, GRID, GREY, *PALETTE)
    own = np.array([ImageColor.getrgb(name) for name in names])
    # Pillow looks colours up by boxes of a few levels: a shade too near would win over our own.
    apart = np.abs(shades[:, None] - own).max(axis=-1).min(axis=1)
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([own, shades[apart > 8]]).ravel().tolist())
    return palette


def write_mp4(film: Film, file: Path) -> None:
    """Write a film that every browser and phone plays (H.264, yuv420p)."""
    images = list(_moving_images(film))
    height, width, _ = images[0].shape
    command = [
        ffmpeg_binary(), "-y", "-loglevel", "error",
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
        "-framerate", str(1000 / FRAME_MS), "-i", "-",
        "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-r", "25",
        "-movflags", "+faststart", "-f", "mp4", str(file.absolute()),
    ]  # fmt: skip
    pixels = b"".join(image.tobytes() for image in images + images[-1:] * HOLD_FRAMES)
    run = subprocess.run(command, input=pixels, capture_output=True, check=False)
    if run.returncode:
        raise InputError(f"ffmpeg could not write the film: {run.stderr.decode().strip()}")


def ffmpeg_binary() -> str:
    """Return the program that makes films, or nothing where there is none."""
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        return shutil.which("ffmpeg") or ""
    import imageio_ffmpeg

    try:
        return str(imageio_ffmpeg.get_ffmpeg_exe())
    except RuntimeError:  # the package came without its program, and none is installed
        return ""
