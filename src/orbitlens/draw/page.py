"""Pages that hold all they need: the one place where text becomes HTML or JSON inside HTML.

Enters: a title, a body, data, styles and a script. Leaves: the text of a page that asks the network
for nothing, and is forbidden to.
"""

import html
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files

from orbitlens.draw.script import bundle
from orbitlens.errors import printable

POLICY = (
    "default-src 'none'; img-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)


def esc(value: object) -> str:
    """Return text that is safe inside an element and inside a quoted attribute.

    >>> esc("</script>")
    '&lt;/script&gt;'
    """
    return html.escape(printable(str(value)), quote=True)


def script_json(data: object) -> str:
    r"""Return JSON that no string in it can end the script element or open a comment.

    >>> script_json({"token": "</script>"})
    '{"token":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return the text of a file that pages are made of, by its path inside the package."""
    return files("orbitlens").joinpath(name).read_text(encoding="utf-8")


def whole_page(
    title: str, body: str, *, data: Mapping[str, object], styles: Sequence[str], script: str
) -> str:
    """Return a page.

    Args:
        title: of the browser's tab, as plain text.
        body: HTML whose strings are escaped.
        data: what scripts read, each by the id of its element.
        styles: paths of style sheets inside the package, after the theme.
        script: path of the module inside the package that the page runs.
    """
    sheets = "".join(asset(name) for name in ("draw/assets/theme.css", *styles))
    inside = "".join(
        f'<script type="application/json" id="{esc(name)}">{script_json(value)}</script>'
        for name, value in data.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<title>{esc(title)}</title><link rel="icon" href="data:,"><style>{sheets}</style></head>'
        f'<body>{body}{inside}<script type="module">{bundle(script, asset)}</script>'
        "</body></html>\n"
    )
