"""Draw the pictures of the documentation: `python docs/make_pictures.py`.

Enters: nothing; the demo model is made on the spot. Leaves: img/scan.svg, what `orbitlens demo`
shows on a colour terminal, and img/flow.png, a simulated flow. The same source gives the same SVG,
and nothing in it is fetched from anywhere: text is in whatever monospaced font the reader has.
"""

import io
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

from orbitlens import ScanOptions, load_checkpoint, scan
from orbitlens.cli.demo import write_demo_model
from orbitlens.draw.film_file import write_film
from orbitlens.flows.film import flow_film
from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.picture import flow_picture
from orbitlens.flows.setup import Setup, build
from orbitlens.flows.system import Geometry
from orbitlens.terminal.fitted_table import WIDTH
from orbitlens.terminal.scan import scan_view

FOLDER = Path(__file__).parent / "img"
CONTEXT = 256  # as in `orbitlens demo`

BACKGROUND, FOREGROUND = (22, 24, 35), (222, 225, 234)
# The 16 basic colours are not used by the view; the 256 others do not depend on the theme.
THEME = TerminalTheme(BACKGROUND, FOREGROUND, [FOREGROUND] * 8)

# Rich's own frame without its title bar (the box starts lower) and the fonts it would fetch.
FRAME = """\
<svg viewBox="0 18 {width} {height}" xmlns="http://www.w3.org/2000/svg" role="img">
<title>What orbitlens demo prints</title>
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
    """Return the scan of the demo model as SVG."""
    console = Console(
        record=True,
        width=WIDTH,
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        highlight=False,
    )
    with tempfile.TemporaryDirectory() as folder:
        model = write_demo_model(Path(folder))
        result = scan(load_checkpoint(model), ScanOptions(context=CONTEXT))
    # The last part is what the scan cost, which differs from run to run.
    *parts, _ = scan_view(result, console)
    console.print("$ orbitlens demo\n", style="bold")
    for part in parts:
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
    file = FOLDER / "scan.svg"
    file.write_text(scan_picture(), encoding="utf-8")
    print(f"{file.name}: {file.stat().st_size} bytes")
    flow_picture_file(FOLDER / "flow.png")
