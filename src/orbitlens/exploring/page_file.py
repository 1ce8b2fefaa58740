"""ExplorerData -> the page, one HTML file whose policy lets nothing run but its own script.

Enters: `ExplorerData`. Leaves: text of a page, live (it may ask the server that it came from, and
no other) or frozen (it may ask nobody), and the file.
"""

from pathlib import Path

from orbitlens.draw.page import Renewal, asset, esc, whole_page
from orbitlens.errors import InputError
from orbitlens.exploring.data import ExplorerData
from orbitlens.files import remedy, write_whole

FOLDER = "exploring/page"


def page_html(data: ExplorerData, *, live: bool = False) -> str:
    """Return the explorer's page."""
    return whole_page(
        f"{data.facts.name} in orbitlens",
        asset(f"{FOLDER}/index.html").replace("{model}", esc(data.facts.name)),
        data={"explorer-data": data.payload(live=live)},
        styles=[f"{FOLDER}/style.css", f"{FOLDER}/rooms.css"],
        script=f"{FOLDER}/app.js",
        renewal=Renewal(connects=live),
    )


def write_page(data: ExplorerData, path: str | Path) -> Path:
    """Write the frozen page, whole or not at all, and return the file.

    Raises:
        InputError: it cannot be written there.
    """
    file = Path(path).resolve()
    try:
        write_whole(file, page_html(data).encode("utf-8"))
    except OSError as error:
        raise InputError(
            f"{path}: the page cannot be written ({error}). {remedy(error)}"
        ) from error
    return file
