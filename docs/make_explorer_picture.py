"""Draw docs/img/explorer.png: the room Flow, light and dark.

    python docs/make_explorer_picture.py EXPLORER.html

Needs playwright, Pillow and a Chromium. The page is one of `orbitlens explore MODEL -o FILE`.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "img" / "explorer.png"
SCREEN, GAP = {"width": 1360, "height": 960}, 12  # the height that a stage is fitted to
STATES = {"light": ("", 4.2), "dark": ("#system=head&layer=1&head=0", 3.0)}  # and the moment
MOST_BYTES = 300_000


def main() -> None:
    """Put the two themes below one another."""
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        images = [_shot(browser, Path(sys.argv[1]), scheme) for scheme in STATES]
        browser.close()
    tall = sum(image.height for image in images) + GAP
    paper = Image.new("RGB", (SCREEN["width"], tall), (255, 255, 255))
    paper.paste(images[0], (0, 0))
    paper.paste(images[1], (0, images[0].height + GAP))
    paper.quantize(palette=_palette(paper), dither=Image.Dither.NONE).save(OUT, optimize=True)
    assert OUT.stat().st_size < MOST_BYTES
    print(f"{OUT}: {OUT.stat().st_size:,} bytes")


def _palette(paper: Image.Image) -> Image.Image:
    """Return the most frequent colours, for surfaces, and ones spread over all, for tokens."""
    frequent = paper.quantize(128, Image.Quantize.MEDIANCUT).getpalette() or []
    spread = paper.quantize(128, Image.Quantize.MAXCOVERAGE).getpalette() or []
    palette = Image.new("P", (1, 1))
    palette.putpalette([*frequent[:384], *spread[:384]])
    return palette


def _shot(browser, page_file: Path, scheme: str) -> Image.Image:  # noqa: ANN001 - of playwright
    after, moment = STATES[scheme]
    page = browser.new_page(viewport=SCREEN, color_scheme=scheme)
    page.goto(page_file.resolve().as_uri() + after)
    page.wait_for_selector("html[data-ready=yes]")
    page.evaluate(f"rooms.flow.seek({moment})")
    frames = -1
    while frames != (now := page.evaluate("rooms.flow.frames()")):  # until its map is computed
        frames = now
        page.wait_for_timeout(1000)
    image = page.screenshot(full_page=True)  # charts and certificates to their ends
    page.close()
    return Image.open(io.BytesIO(image)).convert("RGB")


if __name__ == "__main__":
    main()
