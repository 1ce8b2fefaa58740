"""Report JSON -> one HTML file that holds everything it needs and asks the network for nothing.

Enters: a report's JSON. Leaves: the text of a page: its sections as plain HTML, plotly's script,
one small module that draws, and the whole JSON.
"""

import json
from importlib.resources import files
from typing import Any

from orbitlens.errors import InputError, MissingPackageError
from orbitlens.reporting.data import SECTIONS
from orbitlens.reporting.definitions import DEFINITIONS, LEADS
from orbitlens.reporting.markup import esc
from orbitlens.reporting.sections import RENDER, colour_scale, heads, summary_table

SCRIPTS = ("base.js", "orbits.js", "charts.js", "heads.js", "main.js")
MOST_COLUMNS = 4  # models that have a layout of their own
POLICY = (
    "default-src 'none'; img-src data: blob:; script-src 'unsafe-inline'; style-src 'unsafe-inline'"
)


def render(data: dict[str, Any]) -> str:
    """Return the page of a report.

    Raises:
        InputError: the JSON lacks something that a report has.
    """
    try:
        body = _body(data)
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise InputError(
            f"this report's data are broken: {type(error).__name__} at {error}. Make it anew with "
            "`orbitlens report MODEL --json FILE`."
        ) from error
    names = ", ".join(model["name"] for model in data["models"])
    return "".join(
        (
            '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            f'<title>Orbits of {esc(names)}</title><link rel="icon" href="data:,">',
            f"<style>{asset('report.css')}</style></head><body>",
            body,
            f'<script type="application/json" id="report-data">{script_json(data)}</script>',
            f"<script>{_plotly()}</script>",
            f'<script type="module">{"".join(map(asset, SCRIPTS))}</script></body></html>\n',
        )
    )


def script_json(data: dict[str, Any]) -> str:
    r"""Return JSON that no string in it can end the script element or open a comment.

    >>> script_json({"token": "</script>"})
    '{"token":"\\u003c/script\\u003e"}'
    """
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """Return the text of a file that pages are made of."""
    return files("orbitlens.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise MissingPackageError("a report needs plotly: pip install 'orbitlens[plot]'") from error
    return str(get_plotlyjs())


def _body(data: dict[str, Any]) -> str:
    models = data["models"]
    links = "".join(f'<a href="#{key}">{esc(name)}</a>' for key, name in SECTIONS.items())
    sections = "".join(_section(key, data) for key in SECTIONS)
    terms = "".join(
        f'<dt id="def-{key}">{esc(term)}</dt><dd>{esc(text)}</dd>'
        for key, (term, text) in DEFINITIONS.items()
    )
    versions = ", ".join(f"{name} {version}" for name, version in data["versions"].items())
    return (
        '<a class="skip" href="#words">Skip to the report</a>'
        f"<header><h1>{_title(models)}</h1><p>{esc(_subtitle(models))}</p></header>"
        f'<nav aria-label="Sections">{links}</nav><main>{sections}'
        f'<section id="definitions"><h2>Definitions</h2><dl>{terms}</dl></section></main>'
        f"<footer><p>Made with {esc(versions)}. The data of every chart are inside this file: "
        "<code>orbitlens report --data FILE</code> draws it anew.</p></footer>"
    )


def _title(models: list[dict[str, Any]]) -> str:
    return f"Orbits of {esc(models[0]['name'])}" if len(models) == 1 else "Orbits side by side"


def _subtitle(models: list[dict[str, Any]]) -> str:
    if len(models) > 1:
        return ", ".join(model["name"] for model in models)
    scan = models[0]["scan"]
    if scan is None:
        return "its weights could not be scanned"
    info = scan["model"]
    mask = "causal" if info["causal"] else "full"
    return (
        f"{info['family']}, {info['n_layers']} layers of {info['n_heads']} heads, width "
        f"{info['d_model']}, {info['parameters']:,} parameters, position {info['position']}, "
        f"{mask} attention"
    )


def _section(key: str, data: dict[str, Any]) -> str:
    models = data["models"]
    many = len(models) > 1
    scale = colour_scale(models)
    blocks = "".join(
        f'<article class="model" aria-label="{esc(model["name"])}">'
        + (f"<h3>{esc(model['name'])}</h3>" if many else "")
        + (heads(model, k, scale) if key == "heads" else RENDER[key](model, k))
        + "</article>"
        for k, model in enumerate(models)
    )
    text, target = LEADS[key]
    panel = '<div class="detail" id="detail" aria-live="polite"></div>' if key == "heads" else ""
    table = summary_table(models) if key == "words" and many else ""
    return (
        f'<section id="{key}"><h2>{esc(SECTIONS[key])}</h2><p class="lead">{esc(text)} '
        f'<a href="#def-{target}">What is that?</a></p>{table}'
        f'<div class="models n{min(len(models), MOST_COLUMNS)}">{blocks}</div>{panel}</section>'
    )
