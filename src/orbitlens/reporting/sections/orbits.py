"""Orbits: where real tokens go, depth by depth; the page's script moves and turns them."""

import math
from collections.abc import Sequence

from orbitlens.draw.figure import GREY, Curve, Panel, Points
from orbitlens.draw.page import esc
from orbitlens.reporting.chart import PageChart
from orbitlens.reporting.data import ModelReport, Orbits
from orbitlens.reporting.markup import Row, Table, absent
from orbitlens.reporting.sections.section import Place

YAW, PITCH = 0.6, 0.35  # of the first look in three dimensions, radians
FIRST, MIDDLE, LAST = (11, 79, 138), (138, 143, 160), (227, 154, 0)  # colours of places
ORDINALS = ("first", "second", "third")
VIEWS = {"shared": "polar", "2": "2-D", "3": "3-D"}


def orbits_section(model: ModelReport, place: Place) -> str:
    """Return the place where tokens move through depth."""
    if model.orbits is None:
        return absent(model.why("orbits", "model"))
    k = place.k
    views = "".join(
        f'<label><input type="radio" name="view-{k}" value="{value}"'
        f"{' checked' if value == 'shared' else ''}> {text}</label>"
        for value, text in VIEWS.items()
    )
    choices = (
        '<div class="title"><h4>Orbits of real tokens</h4>'
        f'<fieldset class="choices switch"><legend>View</legend>{views}</fieldset></div>'
    )
    below = (
        '<p class="scale place"><span>first token</span><i></i><span>last token</span>'
        '<label><input type="checkbox" name="words"> tokens as text</label></p>'
    )
    return f'<div class="orbits" data-model="{k}">{choices}{place.charts["orbits"]}{below}</div>'


def player(path: Orbits) -> str:
    """Return the controls of the moving picture."""
    last = len(path.depths) - 1
    return (
        '<div class="player"><button type="button">Play</button>'
        f'<label>Depth <input type="range" min="0" max="{last}" value="{last}"></label>'
        f"<output>{esc(path.depths[-1])}</output></div>"
    )


def charts(model: ModelReport) -> list[PageChart]:
    """Return the tokens around the direction that they share, where they end."""
    return [] if model.orbits is None else [_shared_chart(model.orbits)]


def _shared_chart(path: Orbits) -> PageChart:
    left = f" {path.n_left_out} tokens are left out." if path.n_left_out else ""
    title = (
        f"Directions of {len(path.tokens)} tokens of one context. Centre: the direction that they "
        f"share; rings: cosine with it.{left}"
    )
    spots = [polar(*pair) for pair in zip(path.shared[-1], path.bearings[-1], strict=True)]
    panel = Panel(layers=[_points(path, spots)], title=title, bare=True, square=True)
    return PageChart(
        kind="orbits", title=title, panel=panel, table=places(path), shape="round", shared=False
    )


def polar(cosine: float, bearing: float) -> tuple[float, float]:
    """Return a token's place around the shared direction: its squared distance is 1 - cosine.

    >>> polar(0.75, 0.0)
    (0.5, 0.0)
    """
    away = math.sqrt(max(0.0, 1 - cosine))
    return away * math.cos(bearing), away * math.sin(bearing)


def pictures(model: ModelReport) -> list[PageChart]:
    """Return the tokens around what they share, and in two principal directions."""
    if model.orbits is None:
        return []
    return [_shared_chart(model.orbits), _chart(model.orbits, 2)]


def _chart(path: Orbits, view: int) -> PageChart:
    flat, solid = sum(path.explained[:2]), sum(path.explained)
    left = f"; {path.n_left_out} tokens are left out" if path.n_left_out else ""
    title = (
        f"Directions of {len(path.tokens)} tokens in the axes in which they vary most: two hold "
        f"{flat:.0%} of the variance, three {solid:.0%}{left}"
    )
    axes = [
        f"{name} direction, {share:.0%}"
        for name, share in zip(ORDINALS, path.explained, strict=True)
    ]
    short = "Through depth, in 2-D" if view == 2 else "The same in 3-D"
    panel = Panel(
        layers=[_ways(path, view), _ends(path, view)],
        title=short,
        x_label=axes[0] if view == 2 else "",
        y_label=axes[1] if view == 2 else "",
        bare=view == 3,
        square=view == 3,
    )
    return PageChart(
        kind="orbits", title=title, panel=panel, table=places(path), shape="tall", shared=False
    )


def _seen(point: tuple[float, float, float], view: int) -> tuple[float, float]:
    """Return a point as the page's script shows it before anybody turns it."""
    x, y, z = point
    if view == 2:
        return x, y
    behind = -x * math.sin(YAW) + z * math.cos(YAW)
    return (
        x * math.cos(YAW) + z * math.sin(YAW),
        y * math.cos(PITCH) - behind * math.sin(PITCH),
    )


def _ways(path: Orbits, view: int) -> Curve:
    """Return the ways of all tokens as one line with gaps."""
    x: list[float] = []
    y: list[float | None] = []
    for n in range(len(path.tokens)):
        for frame in path.positions:
            across, up = _seen(frame[n], view)
            x.append(across)
            y.append(up)
        x.append(math.nan)
        y.append(None)
    return Curve(x=x, y=y, colour=GREY, width=0.8, opacity=0.4)


def _ends(path: Orbits, view: int) -> Points:
    return _points(path, [_seen(point, view) for point in path.positions[-1]])


def _points(path: Orbits, spots: Sequence[tuple[float, float]]) -> Points:
    last = max(1, len(spots) - 1)
    return Points(
        x=[x for x, _ in spots],
        y=[y for _, y in spots],
        colours=[_shade(k / last) for k in range(len(spots))],
        texts=[f"{k}: “{token}”" for k, token in enumerate(path.tokens)],
    )


def _shade(share: float) -> str:
    """Return the colour of a place in the context, from the first token to the last.

    >>> _shade(0.0), _shade(1.0)
    ('#0b4f8a', '#e39a00')
    """
    low, high, t = (FIRST, MIDDLE, 2 * share) if share < 0.5 else (MIDDLE, LAST, 2 * share - 1)
    parts = (round(a + t * (b - a)) for a, b in zip(low, high, strict=True))
    return "#" + "".join(f"{part:02x}" for part in parts)


def places(path: Orbits) -> Table:
    """Return where each token is at each depth."""
    rows: list[Row] = [
        [f"{n} {token!r}", depth, path.shared[d][n], path.bearings[d][n], *path.positions[d][n]]
        for n, token in enumerate(path.tokens)
        for d, depth in enumerate(path.depths)
    ]  # fmt: skip
    columns = ("token", "depth", "cosine with the shared direction", "bearing", *ORDINALS)
    caption = "Tokens around the direction they share, and in their three principal directions"
    return Table(name="orbits", caption=caption, columns=columns, rows=rows)


def tables(model: ModelReport) -> list[Table]:
    """Return where each token is at each depth, for a CSV file."""
    return [places(model.orbits)] if model.orbits is not None else []
