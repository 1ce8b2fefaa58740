"""Draw docs/img/report.png, the picture of a report.

    python docs/make_report_picture.py REPORT.html

Needs playwright, Pillow and a Chromium. The report is one of `orbitlens report MODEL`.
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

OUT = Path(__file__).parent / "img" / "report.png"
WIDTH = 1120  # of the page, in pixels
COLUMN = 800  # of one half of the picture
HEIGHT = 1480
MOST_BYTES = 300_000


def shots(report: Path) -> list[Image.Image]:
    """Return the page down to the chosen head, and two sections further below."""
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": WIDTH, "height": 900}, device_scale_factor=1.5)
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-drawn=all]", timeout=120_000)
        end = page.evaluate("document.getElementById('depth').getBoundingClientRect().top")
        top = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": WIDTH, "height": end})
        page.add_style_tag(content="nav { display: none !important; }")  # it would cover headings
        rest = [page.locator(f"#{name}").screenshot() for name in ("depth", "orbits")]
        browser.close()
    return [Image.open(io.BytesIO(image)).convert("RGB") for image in (top, *rest)]


def narrowed(image: Image.Image) -> Image.Image:
    """Return an image as wide as one half of the picture."""
    return image.resize((COLUMN, round(image.height * COLUMN / image.width)), Image.LANCZOS)


def main() -> None:
    """Put the halves side by side."""
    top, *rest = (narrowed(image) for image in shots(Path(sys.argv[1])))
    paper = Image.new("RGB", (2 * COLUMN, HEIGHT), top.getpixel((2, 2)))
    paper.paste(top, (0, 0))
    y = 30
    for image in rest:
        paper.paste(image, (COLUMN, y))
        y += image.height + 10
    paper.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(
        OUT, optimize=True
    )
    assert OUT.stat().st_size <= MOST_BYTES, OUT.stat().st_size


if __name__ == "__main__":
    main()
