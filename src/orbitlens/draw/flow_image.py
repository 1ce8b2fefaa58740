"""A flow as a still (PNG) or moving (GIF, MP4) image, by matplotlib."""

import importlib.util
import math
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from orbitlens.draw.flow_picture import FlowPicture, Plane
from orbitlens.draw.flow_style import (
    CURVE,
    FAR_SIZE,
    FEW,
    FRAME_MS,
    GREY,
    GRID,
    HOLD_FRAMES,
    INK,
    MUTED,
    OKABE_ITO,
    PAPER,
    SideChart,
    as_sentence,
    cluster_symbol,
    history_opacity,
    legend_entries,
    nearness,
    plane_limits,
    plane_sides,
    side_charts,
    token_colours,
    trail_length,
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
    """The picture drawn by matplotlib; what moves is redrawn over a kept background."""

    def __init__(self, picture: FlowPicture, dpi: int) -> None:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import to_rgba_array
        from matplotlib.figure import Figure

        self.picture = picture
        self.colours = to_rgba_array(token_colours(picture))
        self.length, self.history = trail_length(picture), history_opacity(picture)
        self.charts = side_charts(picture)
        self.figure = Figure(figsize=INCHES, dpi=dpi, facecolor=PAPER)
        self.canvas = FigureCanvasAgg(self.figure)
        self.axes, self.side = self._places()
        _draw_words(self.figure, picture)
        _draw_plane(self.axes, picture.plane)
        for axes, chart in zip(self.side, self.charts, strict=True):
            _draw_chart(axes, chart, picture.times.numpy())
        self.side[-1].set_xlabel("time", color=MUTED, fontsize=8, labelpad=2)
        self.canvas.draw()
        self.background = self.canvas.copy_from_bbox(self.figure.bbox)

    def _places(self) -> "tuple[Axes, list[Axes]]":
        main = self.figure.add_axes((0.06, 0.115, 0.46, 0.695))
        bottoms = (0.51, 0.13)[: len(self.charts)]
        return main, [self.figure.add_axes((0.63, b, 0.34, 0.255)) for b in bottoms]

    def image(self, frame: int) -> NDArray[np.uint8]:
        """Return the pixels of a frame."""
        self.canvas.restore_region(self.background)
        artists = [(self.axes, a) for a in (*self._ways(frame), *self._tokens(frame))]
        for axes, chart in zip(self.side, self.charts, strict=True):
            artists += [(axes, a) for a in self._marker(axes, chart, frame)]
        for axes, artist in artists:
            axes.draw_artist(artist)
            artist.remove()
        return np.asarray(self.canvas.buffer_rgba())[..., :3].copy()

    def _ways(self, frame: int) -> "Iterator[Artist]":
        """Yield tokens' whole ways, pale, and over them their trails, which fade with age."""
        from matplotlib.collections import LineCollection

        for positions, opacity in plane_sides(self.picture.plane):
            whole = positions[: frame + 1].transpose(1, 0, 2)
            shades = self.colours * [1, 1, 1, opacity * self.history]
            yield self.axes.add_collection(
                LineCollection(list(whole), colors=shades, linewidths=0.9)
            )
            recent = positions[max(0, frame - self.length) : frame + 1]
            pieces = np.stack([recent[:-1], recent[1:]], axis=2)  # steps, tokens, ends, axes
            age = np.arange(len(pieces), 0, -1) / self.length
            fade = 0.7 * opacity * np.clip(1 - age, 0, 1)[:, None, None] * [0, 0, 0, 1]
            shades = (self.colours * [1, 1, 1, 0] + fade).reshape(-1, 4)
            lines = LineCollection(list(pieces.reshape(-1, 2, 2)), colors=shades, linewidths=0.9)
            yield self.axes.add_collection(lines)

    def _tokens(self, frame: int) -> "Iterator[Artist]":
        depth, colours = self.picture.plane.depth, self.colours.copy()
        sizes = np.full(len(colours), 26.0 if len(colours) <= FEW else 14.0)
        if depth is not None:
            near = nearness(depth[frame]).numpy()
            colours[:, 3] = 0.4 + 0.6 * near
            sizes *= (FAR_SIZE + (1 - FAR_SIZE) * near) ** 2  # areas here, widths in plotly
        x, y = self.picture.plane.positions[frame].numpy().T
        markers = np.array([cluster_symbol(k)[1] for k in self.picture.labels.tolist()])
        style: dict[str, Any] = {
            "edgecolors": PAPER,
            "linewidths": 0.6,
            "zorder": 3,
            "clip_on": False,
        }
        for marker in np.unique(markers):
            i = markers == marker
            yield self.axes.scatter(
                x[i], y[i], s=sizes[i], c=colours[i], marker=str(marker), **style
            )

    def _marker(self, axes: "Axes", chart: SideChart, frame: int) -> "Iterator[Artist]":
        now = self.picture.times[frame].item()
        yield axes.axvline(now, color=OKABE_ITO[1], linewidth=0.9)
        yield from axes.plot([now], [chart.values[frame].item()], "o", color=OKABE_ITO[1], ms=4.5)


def _draw_words(figure: "Figure", picture: FlowPicture) -> None:
    def write(x: float, y: float, words: str, **style: Any) -> float:  # noqa: ANN401
        # A dollar sign in a title is a dollar sign.
        text = figure.text(x, y, words, parse_math=False, va="top", **style)
        return float(text.get_window_extent().x1 / figure.bbox.width)

    write(0.03, 0.965, _clipped(picture.title, 88), fontsize=12.5, color=INK, weight="bold")
    write(0.03, 0.905, _clipped(as_sentence(picture.ending), 130), fontsize=9, color=INK)
    notes = _clipped(as_sentence("; ".join(picture.notes)), 170)
    write(0.03, 0.035, notes, fontsize=7, color=MUTED)
    x = 0.03
    for colour, words in legend_entries(picture):
        if colour:
            x = 0.006 + write(x, 0.864, "●", fontsize=8, color=colour)
        x = 0.016 + write(x, 0.861, words, fontsize=8, color=MUTED)


def _clipped(words: str, most: int) -> str:
    """Return words on one line, cut where it ends."""
    line = " ".join(words.split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


def _draw_plane(axes: "Axes", plane: Plane) -> None:
    x_range, y_range = plane_limits(plane)
    axes.set_xlim(*x_range)
    axes.set_ylim(*y_range)
    _plain(axes)
    if plane.is_map:
        axes.set_aspect("equal")
    if any(plane.axes):
        axes.grid(color=GRID, linewidth=0.7)
        axes.set_xlabel(plane.axes[0], color=MUTED, fontsize=8, labelpad=2)
        axes.set_ylabel(plane.axes[1], color=MUTED, fontsize=8, labelpad=2)
    else:
        axes.set_axis_off()
    if plane.y_ticks:
        axes.set_yticks([y for y, _ in plane.y_ticks], [words for _, words in plane.y_ticks])
    for guide in plane.guides:
        axes.plot(*guide.points.numpy().T, color="#D9DDE2", linewidth=0.7, zorder=0)
        x, y = guide.points[0].tolist()
        label = axes.text(x, y, guide.label, ha="center", va="center", fontsize=7, color=MUTED)
        label.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 0.8})


def _draw_chart(axes: "Axes", chart: SideChart, times: NDArray[Any]) -> None:
    from matplotlib.ticker import MaxNLocator

    _plain(axes)
    axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.set_title(chart.title, loc="left", fontsize=8.5, color=INK, pad=6)
    curve = chart.values.masked_fill(~torch.isfinite(chart.values), math.nan)
    axes.plot(times, curve.numpy(), color=CURVE, lw=1.5)
    axes.set_ylim(*chart.limits)
    axes.set_yticks([y for y, _ in chart.ticks], [words for _, words in chart.ticks])
    axes.grid(axis="y", color=GRID, linewidth=0.7)


def _plain(axes: "Axes") -> None:
    axes.spines[:].set_visible(False)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=7.5, labelcolor=MUTED)


def write_png(picture: FlowPicture, file: Path) -> None:
    """Write the last frame, with every token's whole way."""
    from PIL import Image

    pixels = _Drawing(picture, STILL_DPI).image(len(picture.times) - 1)
    Image.fromarray(pixels).save(file, format="PNG", optimize=True, dpi=(STILL_DPI, STILL_DPI))


def _moving_images(picture: FlowPicture) -> Iterator[NDArray[np.uint8]]:
    drawing = _Drawing(picture, MOVING_DPI)
    for frame in range(len(picture.times)):
        yield drawing.image(frame)


def write_gif(picture: FlowPicture, file: Path) -> None:
    """Write a loop; one palette for all frames, so that what stands still costs nothing."""
    from PIL import Image

    images = [Image.fromarray(pixels) for pixels in _moving_images(picture)]
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
    names = (PAPER, INK, MUTED, GRID, CURVE, GREY, *OKABE_ITO)
    own = np.array([ImageColor.getrgb(name) for name in names])
    # Pillow looks colours up by boxes of a few levels: a shade too near would win over our own.
    apart = np.abs(shades[:, None] - own).max(axis=-1).min(axis=1)
    palette = Image.new("P", (1, 1))
    palette.putpalette(np.concatenate([own, shades[apart > 8]]).ravel().tolist())
    return palette


def write_mp4(picture: FlowPicture, file: Path) -> None:
    """Write a film that every browser and phone plays (H.264, yuv420p)."""
    images = list(_moving_images(picture))
    height, width, _ = images[0].shape
    command = [
        ffmpeg_binary(), "-y", "-loglevel", "error",
        "-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}",
        "-framerate", str(1000 / FRAME_MS), "-i", "-",
        "-c:v", "libx264", "-crf", "20", "-pix_fmt", "yuv420p", "-r", "25",
        "-movflags", "+faststart", "-f", "mp4", str(file.absolute()),
    ]  # fmt: skip
    film = b"".join(image.tobytes() for image in images + images[-1:] * HOLD_FRAMES)
    run = subprocess.run(command, input=film, capture_output=True, check=False)
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
