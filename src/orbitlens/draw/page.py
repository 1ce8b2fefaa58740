"""Pages that hold all they need: the one place where text becomes HTML or JSON inside HTML.

Enters: a title, a body, data, styles and a script. Leaves: the text of a page that asks the network
for nothing, and is forbidden to: its policy names the one script and the one style sheet by their
hashes, so that nothing else runs or paints, whatever a string in the body may hold.
"""

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

from orbitlens.draw.script import bundle
from orbitlens.errors import printable

POLICY = "default-src 'none'; img-src data:; script-src '{script}'; style-src '{style}'"
OWN_SERVER = "; connect-src 'self'"  # of a page that asks the server it came from
STYLED = re.compile(r' style="([^"]*)"')  # never of a text: `esc` writes its quotes as &quot;
HARMLESS = re.compile(r"[\w\s#%.,:;()+-]*")  # in a declaration: no brace ends a rule early


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
    title: str,
    body: str,
    *,
    data: Mapping[str, object],
    styles: Sequence[str],
    script: str,
    connects: bool = False,
) -> str:
    """Return a page.

    Args:
        title: of the browser's tab, as plain text.
        body: HTML whose strings are escaped.
        data: what scripts read, each by the id of its element.
        styles: paths of style sheets inside the package, after the theme.
        script: path of the module inside the package that the page runs.
        connects: whether the page may ask the server that it came from.
    """
    body, own = lifted_styles(body)
    sheets = "".join(asset(name) for name in ("draw/assets/theme.css", *styles)) + own
    program = bundle(script, asset)
    policy = POLICY.format(script=_sha256(program), style=_sha256(sheets))
    policy += OWN_SERVER if connects else ""
    inside = "".join(
        f'<script type="application/json" id="{esc(name)}">{script_json(value)}</script>'
        for name, value in data.items()
    )
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        f'<title>{esc(title)}</title><link rel="icon" href="data:,"><style>{sheets}</style></head>'
        f'<body>{body}{inside}<script type="module">{program}</script>'
        "</body></html>\n"
    )


def lifted_styles(body: str) -> tuple[str, str]:
    """Return a body without style attributes, and rules that do the same.

    A policy can name a style sheet by its hash, and no attribute.

    >>> lifted_styles('<i style="--v:1"></i>')
    ('<i data-s="0"></i>', '[data-s="0"]{--v:1}')

    Raises:
        ValueError: a declaration could end its rule.
    """
    numbers: dict[str, int] = {}

    def lifted(found: re.Match[str]) -> str:
        return f' data-s="{numbers.setdefault(found[1], len(numbers))}"'

    changed = STYLED.sub(lifted, body)
    for declarations in numbers:
        if not HARMLESS.fullmatch(declarations):
            raise ValueError(f"a style attribute that could end its rule: {declarations!r}")
    rules = (f'[data-s="{k}"]{{{declarations}}}' for declarations, k in numbers.items())
    return changed, "".join(rules)


def _sha256(text: str) -> str:
    """Return the hash of an inline script or style, as a content policy names it."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
