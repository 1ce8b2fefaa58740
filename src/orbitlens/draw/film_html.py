"""A film as one HTML page that plays it: it holds all it needs and asks the network for nothing."""

import base64
from typing import Any

import numpy as np
from numpy.typing import NDArray

from orbitlens.draw.figure_html import panel_data, themed
from orbitlens.draw.film import FAR_SIZE, FEW, FRAME_MS, Film, nearness
from orbitlens.draw.page import esc, whole_page

# A trail is drawn as windows over one another: the share of its length, and the opacity.
BANDS = ((1.0, 0.22), (0.6, 0.28), (0.25, 0.4))
MOST_HISTORY_POINTS = 8_000  # beyond, trails are drawn without the whole way behind them


def film_page(film: Film) -> str:
    """Return the page that plays a film."""
    last = len(film.times) - 1
    legend = "".join(f"<span>{_dot(colour)}{esc(words)}</span>" for colour, words in film.legend)
    sides = "".join(
        f'<figure><figcaption>{esc(side.title)}</figcaption><div class="plot" role="img" '
        f'aria-label="{esc(side.title)} over time"></div></figure>'
        for side in film.sides
    )
    body = (
        f'<main><h1>{esc(film.title)}</h1><p>{esc(film.subtitle)}</p><p class="keys">{legend}</p>'
        f'<div class="film"><div class="plot" id="plane" role="img" '
        f'aria-label="{esc(film.subtitle)}"></div><div class="sides">{sides}</div></div>'
        '<div class="player"><button type="button">Play</button><label>Time '
        f'<input type="range" min="0" max="{last}" value="{last}"></label>'
        f'<output></output></div><p class="notes">{esc(film.notes)}</p></main>'
    )
    return whole_page(
        film.title,
        body,
        data={"film-data": _film_data(film)},
        styles=["draw/assets/film.css"],
        script="draw/assets/film.js",
    )


def _dot(colour: str) -> str:
    return f'<i class="point" style="--tone:{esc(themed(colour))}"></i>' if colour else ""


def _film_data(film: Film) -> dict[str, Any]:
    """Return what the page's script plays, each number once."""
    return {
        "frame_ms": FRAME_MS,
        "times": film.times.tolist(),
        "n_points": len(film.colours),
        "positions": _base64(film.positions),
        "near": None if film.depth is None else _base64(nearness(film.depth)),
        "far_size": FAR_SIZE,
        "size": 8.0 if len(film.colours) <= FEW else 6.0,
        "colours": list(film.colours),
        "symbols": list(film.symbols),
        "texts": list(film.texts),
        "trails": [
            {"length": max(1, round(share * film.trail_length)), "opacity": opacity}
            for share, opacity in _bands(film)
        ],
        "plane": panel_data(film.plane),
        "sides": [panel_data(side) for side in film.sides],
    }


def _bands(film: Film) -> list[tuple[float, float]]:
    """Return the bands of a trail, the whole way below them where that is not too much to draw."""
    n_frames, n_points, _ = film.positions.shape
    if n_frames * n_points > MOST_HISTORY_POINTS:
        return list(BANDS)
    return [(n_frames / film.trail_length, film.history_opacity), *BANDS]


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype="<f4").tobytes()).decode()
