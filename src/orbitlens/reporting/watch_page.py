"""A watched run -> one page that stands alone; while the run goes on, one that reads itself anew.

Enters: a `WatchedRun`. Leaves: the text of a page: what is wrong in words, the time line of alarms,
heads over steps and directions by depth.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from orbitlens.draw.figure import Panel
from orbitlens.draw.figure_html import legend, panel_data
from orbitlens.draw.page import Renewal, esc, whole_page
from orbitlens.reporting.markup import Table, behind, items, table
from orbitlens.watching.alarm import AlarmKind
from orbitlens.watching.pictures import (
    cosine_panel,
    heads_panel,
    loss_panel,
    rank_curves,
    timeline_panel,
)
from orbitlens.watching.watched_run import AlarmEpisode, WatchedRun, run_sentences
from orbitlens.watching.words import lowered, places, severity

ROW = 19  # pixels a row of a table of colours
MOST_LISTED = 200  # alarms in the table


@dataclass(frozen=True, kw_only=True)
class _Block:
    """One chart of the page."""

    title: str
    words: str
    panel: Panel
    height: int
    is_wide: bool = False


def page_of_run(run: WatchedRun, *, reload_after: int | None = None) -> str:
    """Return the page of a run.

    Args:
        run: its readings so far.
        reload_after: seconds after which a browser reads the page anew; None: a run that is over.
    """
    blocks = list(_blocks(run))
    drawn = "".join(_drawn(k, block) for k, block in enumerate(blocks))
    live = "" if reload_after is None else '<p class="live">Following the run.</p>'
    sentences = list(run_sentences(run))
    body = (
        f"<main><header><h1>Watch: {esc(run.header.model)}</h1>"
        f'<p class="source">{esc(run.name)}</p>{live}</header>'
        f'<section id="now" class="{"bad" if _is_bad(run) else "good"}">'
        f"{items(sentences, 'plain')}</section>"
        f'{_alarms(run)}<div class="panels">{drawn}</div>{_table(run)}</main>'
    )
    return whole_page(
        f"Watch: {run.header.model}",
        body,
        data={"figure-data": [panel_data(block.panel) for block in blocks]},
        styles=["draw/assets/figure_page.css", "reporting/assets/watch.css"],
        script="draw/assets/figure_page.js",
        renewal=Renewal(reload_after=reload_after),
    )


def _is_bad(run: WatchedRun) -> bool:
    return run.last is not None and bool(run.last.alarms)


def _blocks(run: WatchedRun) -> Sequence[_Block]:
    if not run.readings:
        return []
    made = []
    timeline, loss = timeline_panel(run), loss_panel(run)
    if loss is not None:
        words = "Upright lines are the first alarm of each kind."
        made.append(_Block(title="Loss", words=words, panel=loss, height=260))
    if timeline is not None:
        made.append(
            _Block(
                title="Alarms",
                words="From the first reading that shows it to the last; in brackets how many "
                "heads of the layer.",
                panel=timeline,
                height=max(120, 60 + 24 * len(timeline.y_ticks)),
            )
        )
    heads = heads_panel(run)
    made.append(
        _Block(
            title="How far the scores of each head spread",
            words="Standard deviation of a query's scores over √(2 ln n), as a power of 2. Above 0 "
            "a softmax over n random scores sits on a few of them, and little gradient comes back "
            "through it: a reading, as most sound runs have such heads. At full orange it "
            "is an alarm.",
            panel=heads,
            height=_heat_height(heads),
            is_wide=True,
        )
    )
    directions = (
        (
            cosine_panel(run),
            "Directions of tokens: mean cosine",
            "C between tokens of a context, by layer. At 1 all tokens are one direction, and no "
            "later layer can tell them apart.",
        ),
        (
            rank_curves(run),
            "Directions of tokens: effective rank",
            "In how many directions tokens of a context lie. At the line it is an alarm.",
        ),
    )
    for panel, title, words in directions:
        if panel is not None:
            height = max(240, _heat_height(panel))
            made.append(_Block(title=title, words=words, panel=panel, height=height))
    return made


def _heat_height(panel: Panel) -> int:
    rows = len(getattr(panel.layers[0], "y_names", ())) or 1
    return 60 + ROW * rows


def _drawn(k: int, block: _Block) -> str:
    label = esc(f"{block.title}. {block.words}")
    wide = ' class="wide"' if block.is_wide else ""
    return (
        f"<figure{wide}><figcaption>{esc(block.title)}</figcaption>"
        f'<p class="note">{esc(block.words)}</p>{legend(block.panel)}'
        f'<div class="plot" data-panel="{k}" role="img" aria-label="{label}" '
        f'style="height:{block.height}px"></div></figure>'
    )


def _alarms(run: WatchedRun) -> str:
    """Return each kind of alarm with its reason and what people do about it."""
    kinds: dict[AlarmKind, list[AlarmEpisode]] = {}
    for one in run.episodes():
        kinds.setdefault(one.alarm.kind, []).append(one)
    cards = "".join(_card(own) for own in kinds.values())
    return f'<section class="cards">{cards}</section>' if cards else ""


def _card(own: Sequence[AlarmEpisode]) -> str:
    worst = max((one.alarm for one in own), key=severity)
    on = [one.alarm for one in own if one.is_on]
    where = places(on) if on else f"over; it was in {places(one.alarm for one in own)}"
    facts = (
        f"First raised at step {own[0].raised}, seen since step {own[0].since}.",
        f"Where now: {where}." if on else f"It is {where}.",
        f"Worst: {worst.place}: {worst.reason} ({worst.how_sure}).",
        *([f"How sure: {lowered(worst.track_record)}."] if worst.track_record else ()),
    )
    return (
        f'<article class="{"on" if on else "off"}"><h2>{esc(worst.title.capitalize())}</h2>'
        f"{items(facts, 'plain')}<h3>What people do about it</h3>{items(worst.advice)}</article>"
    )


def _table(run: WatchedRun) -> str:
    episodes = run.episodes()
    if not episodes:
        return ""
    rows = [
        (one.alarm.place, one.alarm.title, one.since, one.raised, one.until, one.alarm.reason)
        for one in episodes[:MOST_LISTED]
    ]
    columns = ("where", "alarm", "since", "raised", "until", "why")
    shown = Table(name="alarms", caption="All alarms", columns=columns, rows=rows)
    more = len(episodes) - len(rows)
    left = f'<p class="note">{more} more are in the record.</p>' if more > 0 else ""
    return behind(table(shown) + left, f"All alarms ({len(episodes)})")
