"""Draw the pictures of the documentation: `python docs/make_pictures.py`.

Enters: nothing; the models are those of the zoo. Leaves: img/scan.svg, what `orbitlens scan --text`
shows on a colour terminal; img/directions.svg, why raw distances mislead; img/flow.png, a simulated
flow; and img/positions-confusion.png, of a stored run. The same source gives the same SVG, and
nothing in it is fetched from anywhere: text is in whatever fonts the reader has.
"""

import io
from pathlib import Path

from directions_picture import directions_picture
from positions_picture import main as positions_picture_file
from rich.console import Console
from rich.terminal_theme import TerminalTheme

import orbitlens as ol
from orbitlens.draw.film_file import write_film
from orbitlens.flows.film import flow_film
from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.picture import flow_picture
from orbitlens.flows.setup import Setup, build
from orbitlens.flows.system import Geometry
from orbitlens.running.texts import passage
from orbitlens.terminal.fitted_table import WIDTH, FittedTable
from orbitlens.terminal.scan import scan_view

FOLDER = Path(__file__).parent / "img"
MODEL = "orbit-nano-none"

BACKGROUND, FOREGROUND = (22, 24, 35), (222, 225, 234)
# The 16 basic colours are not used by the view; the 256 others do not depend on the theme.
THEME = TerminalTheme(BACKGROUND, FOREGROUND, [FOREGROUND] * 8)

# Rich's own frame without its title bar (the box starts lower) and the fonts it would fetch.
FRAME = """\
<svg viewBox="0 18 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>What orbitlens scan --text prints</title>
<style>
.{unique_id}-matrix {{
  font-family: ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px;
  line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
<rect y="18" width="{width}" height="{height}" rx="10" fill="FILL"/>
<g transform="translate({terminal_x}, {terminal_y})"
  clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
""".replace("FILL", "#{:02x}{:02x}{:02x}".format(*BACKGROUND))


def scan_picture() -> str:
    """Return the upper part of a scan on text as SVG: words, layers, maps and heads."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    result = ol.scan(MODEL, text=passage())
    console.print(f"$ orbitlens scan {MODEL} --text story.txt\n", style="bold")
    for part in scan_view(result, console):
        if isinstance(part, FittedTable) and part.columns[0].name == "proved":
            break  # certificates, notes and what it cost are on the page of the quick start
        console.print(part)
    return console.export_svg(theme=THEME, code_format=FRAME, unique_id="scan")


def flow_picture_file(file: Path) -> None:
    """Draw tokens on the sphere gathering in clusters: `orbitlens simulate --plot`."""
    setup = Setup(geometry=Geometry.SPHERE, beta=9.0, n_tokens=48, until=12.0)
    system, tokens = build(setup)
    trajectory = integrate_flow(system, tokens, until=setup.until)
    title = "48 tokens on the sphere, W = V = I, β = 9"
    write_film(flow_film(flow_picture(trajectory, title=title, system=system)), file)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in (("scan.svg", scan_picture), ("directions.svg", directions_picture)):
        (FOLDER / name).write_text(draw(), encoding="utf-8")
        print(f"{name}: {(FOLDER / name).stat().st_size} bytes")
    flow_picture_file(FOLDER / "flow.png")
    positions_picture_file()
