"""Why raw distances mislead: four panels as one SVG, from tokens made here and a model of the zoo.

Enters: nothing. Leaves: the text of img/directions.svg. Every number in it is computed by the
library: mean cosines and squared distances of the tokens that are drawn, and a trace. The picture
brings its own paper, light or dark as the reader's system is, so it can stand on any page.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

import orbitlens as ol
from orbitlens.theory.clouds import mean_cosine, mean_squared_distance

MODEL = "orbit-nano-none"
WIDTH, HEIGHT, GAP = 470, 344, 12
STYLE = """
svg { --paper: #ffffff; --card: #f7f8fa; --line: #dfe3e8; --ink: #22262e; --muted: #5c6470;
  --blue: #0072b2; --orange: #c24e00; --faint: #aab1bc; }
@media (prefers-color-scheme: dark) { svg { --paper: #14161f; --card: #1c1f2b; --line: #343a4a;
  --ink: #e6e9f0; --muted: #a3abba; --blue: #58b4f0; --orange: #ff9350; --faint: #6a7385; } }
text { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif;
  font-size: 14px; fill: var(--ink); }
.title { font-size: 16px; font-weight: 600; } .muted { fill: var(--muted); font-size: 13px; }
.blue { fill: var(--blue); } .orange { fill: var(--orange); } .value { font-weight: 600; }
.card { fill: var(--card); stroke: var(--line); }
.axis { stroke: var(--line); stroke-width: 1.2; fill: none; }
.old { stroke: var(--faint); stroke-width: 1.6; stroke-dasharray: 3 3; fill: none; }
.new { stroke: var(--ink); stroke-width: 1.8; fill: none; }
.path { stroke: var(--muted); stroke-width: 1; fill: none; opacity: .7; }
.dot { fill: var(--ink); } .ring { fill: var(--card); stroke: var(--faint); stroke-width: 1.6; }
.bar-blue { fill: var(--blue); } .bar-orange { fill: var(--orange); }
"""


@dataclass(frozen=True)
class Change:
    """Tokens before and after, and what the two geometries say of it."""

    before: Tensor
    after: Tensor

    @property
    def raw(self) -> float:
        """The factor by which the mean squared distance changes."""
        return mean_squared_distance(self.after) / mean_squared_distance(self.before)

    @property
    def cosines(self) -> tuple[float, float]:
        """The mean cosine before and after."""
        return mean_cosine(self.before), mean_cosine(self.after)

    @property
    def log_change(self) -> float:
        """The change of ln(1 - C)."""
        old, new = self.cosines
        return math.log((1 - new) / (1 - old))


def fan() -> Change:
    """Return tokens that share a direction, moved by one layer of a head with W = V = I."""
    angles = torch.tensor([-62.0, -38.0, -8.0, 22.0, 57.0, 88.0, 124.0]).deg2rad().double()
    lengths = torch.tensor([0.85, 1.15, 0.8, 1.2, 0.9, 1.1, 0.8], dtype=torch.float64)
    x = torch.stack([angles.cos(), angles.sin()], dim=1) * lengths[:, None]
    return Change(x, x + (x @ x.T).softmax(dim=-1) @ x)


def with_a_massive_token() -> Change:
    """Return the same tokens beside one 30 times as long; all but that one close in."""
    x = fan().before
    massive = torch.tensor([[30.0, -9.0]], dtype=torch.float64)
    closer = x + 0.9 * (x.mean(dim=0) - 0.35 * x)
    return Change(torch.cat([x, massive]), torch.cat([closer, massive]))


# --- drawing ---------------------------------------------------------------------------------


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{words}</text>'


def _arrow(x: float, y: float, kind: str, origin: tuple[float, float]) -> str:
    """Return a line from the origin that ends in a dot or a ring."""
    end = "ring" if kind == "old" else "dot"
    return (
        f'<path d="M{origin[0]:.1f} {origin[1]:.1f}L{x:.1f} {y:.1f}" class="{kind}"/>'
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" class="{end}"/>'
    )


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def raw_panel(change: Change) -> list[str]:
    """Draw tokens as arrows in the plane, before and after."""
    unit, origin = 74.0, (150.0, 222.0)
    parts = [
        _text(18, 30, "Raw distances grow …", "title"),
        _text(18, 50, "seven tokens, one layer of a head with W = V = I", "muted"),
        f'<path d="M30 {origin[1]}H440M{origin[0]} 66V300" class="axis"/>',
    ]
    for old, new in zip(change.before.tolist(), change.after.tolist(), strict=True):
        places = [(origin[0] + unit * x, origin[1] - unit * y) for x, y in (old, new)]
        parts += [_arrow(*places[1], "new", origin), _arrow(*places[0], "old", origin)]
    said = f'squared distance <tspan class="orange value">× {change.raw:.2f}</tspan>'
    return [*parts, _text(18, 326, said), _text(452, 326, "○ before   ● after", "muted", "end")]


def direction_panel(change: Change) -> list[str]:
    """Draw the same tokens on the circle: what a norm leaves of them."""
    radius, centre = 96.0, (235.0, 178.0)
    parts = [
        _text(18, 30, "… while directions gather", "title"),
        _text(18, 50, "the same tokens as the next layer sees them, behind its norm", "muted"),
        f'<circle cx="{centre[0]}" cy="{centre[1]}" r="{radius}" class="axis"/>',
    ]
    for old, new in zip(change.before.tolist(), change.after.tolist(), strict=True):
        start, end = (math.atan2(y, x) for x, y in (old, new))
        far = radius + 16
        ring = (centre[0] + far * math.cos(start), centre[1] - far * math.sin(start))
        dot = (centre[0] + radius * math.cos(end), centre[1] - radius * math.sin(end))
        parts += [
            f'<path d="M{ring[0]:.1f} {ring[1]:.1f}L{dot[0]:.1f} {dot[1]:.1f}" class="path"/>',
            f'<circle cx="{ring[0]:.1f}" cy="{ring[1]:.1f}" r="4" class="ring"/>',
            f'<circle cx="{dot[0]:.1f}" cy="{dot[1]:.1f}" r="4" class="dot"/>',
        ]
    return [*parts, _text(18, 326, _cosines(change))]


def _cosines(change: Change) -> str:
    old, new = change.cosines
    return (
        f"mean cosine {old:.2f} → {new:.2f}: "
        f'<tspan class="blue value">ΔS = {_signed(change.log_change)}</tspan>'
    )


def massive_panel(change: Change) -> list[str]:
    """Draw a cloud that closes in beside one token too long for the page."""
    unit, origin = 76.0, (112.0, 192.0)
    parts = [
        _text(18, 30, "A massive token hides what the others do", "title"),
        _text(18, 50, "the seven close in; an eighth, 30 times as long, stays", "muted"),
    ]
    pairs = list(zip(change.before.tolist(), change.after.tolist(), strict=True))
    for old, new in pairs[:-1]:
        places = [(origin[0] + unit * x, origin[1] - unit * y) for x, y in (old, new)]
        parts += [_arrow(*places[1], "new", origin), _arrow(*places[0], "old", origin)]
    far = (origin[0] + 292, origin[1] + 292 * 9 / 30)
    middle = (origin[0] + 210, origin[1] + 210 * 9 / 30)
    parts += [
        f'<path d="M{origin[0]} {origin[1]}L{middle[0]:.1f} {middle[1]:.1f}" class="new"/>',
        f'<path d="M{middle[0] - 2:.1f} {middle[1] - 9:.1f}l-8 16m16 -14l-8 16" class="new"/>',
        f'<path d="M{middle[0] + 8:.1f} {middle[1] + 3:.1f}L{far[0]:.1f} {far[1]:.1f}" '
        'class="new"/>',
        f'<circle cx="{far[0]:.1f}" cy="{far[1]:.1f}" r="7" class="dot"/>',
        _text(far[0] + 4, far[1] - 16, "× 30", "muted", "middle"),
    ]
    said = f'squared distance <tspan class="orange value">× {change.raw:.2f}</tspan>; '
    return [*parts, _text(18, 326, said + _cosines(change).removeprefix("mean "))]


def bars_panel(name: str) -> list[str]:
    """Draw what attention does to both in every layer of a model, measured on text."""
    trace = ol.trace(name)
    table = trace.to_pandas()
    rows = table[table["part"] == "attention"]
    assert (rows["log_change"] * rows["raw_log_change"] < 0).any(), "the title says so"
    top, zero, scale = 92.0, 268.0, 96.0
    pitch = 204 / len(rows)
    parts = [
        _text(18, 30, "Measured: the two can disagree in sign", "title"),
        _text(18, 50, f"attention of {name} on {trace.n_tokens:,} tokens of text", "muted"),
        f'<path d="M{zero} 66V300" class="axis"/>',
        _text(zero - 8, 74, "shrink / gather", "muted", "end"),
        _text(zero + 8, 74, "grow / spread", "muted"),
    ]
    for k, row in enumerate(rows.itertuples()):
        y = top + k * pitch
        parts.append(_text(18, y + 19, f"layer {row.layer}", "muted"))
        for offset, value, colour in (
            (0, row.raw_log_change, "orange"),
            (17, row.log_change, "blue"),
        ):
            length = scale * value
            parts.append(
                f'<rect x="{min(zero, zero + length):.1f}" y="{y + offset:.1f}" '
                f'width="{abs(length):.1f}" height="14" rx="2" class="bar-{colour}"/>'
            )
            side = 6 if value > 0 else -6
            anchor = "start" if value > 0 else "end"
            words = _text(zero + length + side, y + offset + 12, _signed(value), "muted", anchor)
            parts.append(words)
    legend = (
        '<tspan class="orange value">■</tspan> Δ ln of squared distance   '
        '<tspan class="blue value">■</tspan> ΔS = Δ ln(1 − C), of directions'
    )
    return [*parts, _text(18, 326, legend)]


def directions_picture() -> str:
    """Return the four panels as one SVG."""
    change = fan()
    panels = [
        raw_panel(change),
        direction_panel(change),
        massive_panel(with_a_massive_token()),
        bars_panel(MODEL),
    ]
    width, height = 2 * WIDTH + 3 * GAP, 2 * HEIGHT + 3 * GAP
    parts = [
        f'<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">',
        "<title>Why raw distances mislead</title>",
        f"<style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" rx="14" fill="var(--paper)"/>',
    ]
    for k, panel in enumerate(panels):
        x, y = GAP + (k % 2) * (WIDTH + GAP), GAP + (k // 2) * (HEIGHT + GAP)
        card = f'<rect width="{WIDTH}" height="{HEIGHT}" rx="10" class="card"/>'
        parts += [f'<g transform="translate({x} {y})">', card, *panel, "</g>"]
    return "\n".join([*parts, "</svg>", ""])
