"""Draw docs/img/report.png, the first screen of a report, light and dark.

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
SCREEN = {"width": 1440, "height": 880}
SCALE = 1200 / SCREEN["width"]  # of each theme in the picture
MOST_BYTES = 300_000


def shots(report: Path) -> list[Image.Image]:
    """Return the first screen in both themes, once the orbits have played."""
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        images = [_shot(browser, report, scheme) for scheme in ("light", "dark")]
        browser.close()
    return images


def _shot(browser, report: Path, scheme: str) -> Image.Image:  # noqa: ANN001 - of playwright
    page = browser.new_page(viewport=SCREEN, color_scheme=scheme, device_scale_factor=1.5)
    page.goto(report.resolve().as_uri())
    page.wait_for_selector("html[data-drawn=all]", timeout=120_000)
    page.locator(".orbits button", has_text="Replay").wait_for(timeout=120_000)
    image = page.screenshot()
    page.close()
    return Image.open(io.BytesIO(image)).convert("RGB")


def main() -> None:
    """Put the themes below one another."""
    light, dark = (
        image.resize((round(SCREEN["width"] * SCALE), round(SCREEN["height"] * SCALE)))
        for image in shots(Path(sys.argv[1]))
    )
    paper = Image.new("RGB", (light.width, 2 * light.height + 12), (255, 255, 255))
    paper.paste(light, (0, 0))
    paper.paste(dark, (0, light.height + 12))
    paper.quantize(256, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE).save(
        OUT, optimize=True
    )
    assert OUT.stat().st_size <= MOST_BYTES, OUT.stat().st_size


if __name__ == "__main__":
    main()
