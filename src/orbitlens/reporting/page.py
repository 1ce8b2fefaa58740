"""Report -> one HTML file that holds everything it needs and asks the network for nothing.

Enters: the models of a report and its JSON. Leaves: the text of a page: its sections as plain HTML,
the panels of its charts, the whole JSON, and one script that draws.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from orbitlens.draw.figure_html import panel_data
from orbitlens.draw.page import esc, whole_page
from orbitlens.reporting.chart import PageChart, chart_html, share_axes
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.definitions import DEFINITIONS
from orbitlens.reporting.markup import items
from orbitlens.reporting.sections import SECTIONS, STORY
from orbitlens.reporting.sections.compare import comparison_charts, comparison_table
from orbitlens.reporting.sections.heads import colour_scale
from orbitlens.reporting.sections.orbits import player
from orbitlens.reporting.sections.section import Place, Section

MOST_COLUMNS = 4  # models that have a layout of their own
DETAIL = (
    '<section id="head"><h2>The chosen head</h2><p class="lead">All about one head: choose it in '
    'the map, in a table or in a chart. <a href="#def-share">Definition</a></p>'
    '<div class="detail" id="detail" aria-live="polite"></div></section>'
)


def render(models: Sequence[ModelReport], versions: Mapping[str, str], data: Any) -> str:  # noqa: ANN401
    """Return the page of a report.

    Args:
        models: of the report.
        versions: of the packages that made it.
        data: the whole report as JSON, for the page's script and for later readers.
    """
    panels: list[dict[str, Any]] = []
    shown = [one for one in SECTIONS if one.body is not None and any(map(one.is_shown, models))]
    first = _compared(models, panels) if len(models) > 1 else ""
    first += _section(STORY, models, panels) + DETAIL
    rest = "".join(_section(one, models, panels) for one in shown)
    places = {STORY.key: STORY.title, "head": "The chosen head"}
    if len(models) > 1:
        places = {"compared": "Compared", **places}
    places |= {one.key: one.title for one in shown}
    links = "".join(f'<a href="#{key}">{esc(name)}</a>' for key, name in places.items())
    made = ", ".join(f"{name} {version}" for name, version in versions.items())
    body = (
        '<a class="skip" href="#story">Skip to the report</a>'
        f'<nav aria-label="Sections">{links}</nav>'
        f"<header><h1>{esc(title(models))}</h1><p>{esc(_subtitle(models))}</p></header>"
        f"<main>{first}{rest}{_definitions()}</main>"
        f"<footer><p>Made with {esc(made)}. The data of every chart are inside this file: "
        "<code>orbitlens report --data FILE</code> draws it anew.</p></footer>"
    )
    return whole_page(
        f"Orbits of {', '.join(model.name for model in models)}",
        body,
        data={"report-data": data, "panel-data": panels},
        styles=["reporting/assets/report.css", "reporting/assets/story.css"],
        script="reporting/assets/report.js",
    )


def _definitions() -> str:
    terms = "".join(
        f'<dt id="def-{key}">{esc(term)}</dt><dd>{esc(text)}</dd>'
        for key, (term, text) in DEFINITIONS.items()
    )
    return f'<section id="definitions"><h2>Definitions</h2><dl>{terms}</dl></section>'


def title(models: Sequence[ModelReport]) -> str:
    """Return the heading of a report."""
    return f"Orbits of {models[0].name}" if len(models) == 1 else "Orbits side by side"


def _subtitle(models: Sequence[ModelReport]) -> str:
    if len(models) > 1:
        return ", ".join(model.name for model in models)
    if models[0].scan is None:
        return "its weights could not be scanned"
    info = models[0].scan.model
    mask = "causal" if info.causal else "full"
    return (
        f"{info.family}, {info.n_layers} layers of {info.n_heads} heads, width {info.d_model}, "
        f"{info.parameters:,} parameters, position {info.position.value}, {mask} attention"
    )


def _compared(models: Sequence[ModelReport], panels: list[dict[str, Any]]) -> str:
    """Return several models on the same axes, with what differs."""
    drawn = "".join(_drawn(chart, models[0], panels) for chart in comparison_charts(models))
    said = items(
        (f"{model.name}: {model.words[0]}" for model in models if model.trace is not None), "plain"
    )
    return (
        '<section id="compared"><h2>Compared</h2><p class="lead">The same numbers of all models; '
        "depth is the share of the layers that were passed.</p>"
        f'<div class="models"><article class="model">{said}<div class="pair">{drawn}</div>'
        f"{comparison_table(models)}</article></div></section>"
    )


def _section(one: Section, models: Sequence[ModelReport], panels: list[dict[str, Any]]) -> str:
    assert one.body is not None
    many, story = len(models) > 1, one is STORY
    scales = {"scale": colour_scale(models), "weights_scale": colour_scale(models, weights=True)}
    charts = share_axes([{chart.key: chart for chart in one.charts(model)} for model in models])
    blocks = []
    for k, model in enumerate(models):
        drawn = {key: _drawn(chart, model, panels) for key, chart in charts[k].items()}
        inside = one.body(model, Place(k=k, charts=drawn, **scales))
        name = f"<h3>{esc(model.name)}</h3>" if many else ""
        blocks.append(
            f'<article class="model" data-model="{k}" aria-label="{esc(model.name)}">'
            f"{name}{inside}</article>"
        )
    columns = 1 if story else min(len(models), MOST_COLUMNS)
    heading = (
        f'<h2 class="unseen">{esc(one.title)}</h2>'
        if story
        else f'<h2>{esc(one.title)}</h2><p class="lead">{esc(one.lead)} '
        f'<a href="#def-{one.term}">Definition</a></p>'
    )
    return (
        f'<section id="{one.key}">{heading}'
        f'<div class="models n{columns}">{"".join(blocks)}</div></section>'
    )


def _drawn(chart: PageChart, model: ModelReport, panels: list[dict[str, Any]]) -> str:
    if chart.kind == "orbits":  # moved by a script of its own
        assert model.orbits is not None
        return chart_html(chart, -1, after=player(model.orbits))
    panels.append(panel_data(chart.panel))
    return chart_html(chart, len(panels) - 1)
