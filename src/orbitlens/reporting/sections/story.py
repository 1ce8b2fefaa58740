"""The first screen: a headline, orbits of real tokens, the map of heads, and three verdicts."""

from orbitlens.draw.page import esc
from orbitlens.reporting.answers import Answer, three_answers
from orbitlens.reporting.data import ModelReport
from orbitlens.reporting.markup import absent, items, note
from orbitlens.reporting.motion import headline, layers_sentence, motions
from orbitlens.reporting.sections.heads import heads_section
from orbitlens.reporting.sections.orbits import orbits_section
from orbitlens.reporting.sections.section import Place

LONG = 92  # characters of a headline beyond which its letters are smaller
CLOSER = "Closer and apart: by the mean squared distance between directions."


def story_section(model: ModelReport, place: Place) -> str:
    """Return all of the first screen."""
    cards = "".join(_card(one) for one in three_answers(model))
    return (
        f"{_headline(model)}"
        f'<div class="stage"><div class="panel">{orbits_section(model, place)}</div>'
        f'<div class="panel">{heads_section(model, place)}</div></div>'
        f'<ol class="answers">{cards}</ol>' + "".join(note(_sentence(text)) for text in model.notes)
    )


def _headline(model: ModelReport) -> str:
    if model.trace is None:
        why = absent(f"no token was followed: {model.why('trace', 'model')}")
        return f'<p class="headline">Read from its weights alone.</p>{why}'
    whole = motions(model.trace)
    several = len(whole) > 1
    said = {one.stack: headline(one, several=several) for one in whole}
    lines = "".join(
        f'<p class="headline{" long" if len(text) > LONG else ""}" data-stack="{esc(stack)}">'
        f"{esc(text)}</p>"
        for stack, text in said.items()
    )
    detail = f"{layers_sentence(whole[-1])} {CLOSER}"
    return f'{lines}<p class="lead">{esc(detail)} <a href="#def-direction">Definition</a></p>'


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].rstrip('.')}."


# --- verdicts ----------------------------------------------------------------------------------


def _card(one: Answer) -> str:
    picture = {"moves": _bars, "predicted": _ruler}.get(one.key)
    drawn = picture(one) if picture is not None and one.numbers else ""
    sure = (
        f'<p class="sure {esc(one.sure)}"><b>How sure: {esc(one.sure)}.</b> '
        f"{esc(_sentence(one.why_sure))}</p>"
        if one.sure
        else ""
    )
    return (
        f'<li class="answer" data-answer="{esc(one.key)}"><h4>{esc(one.question)}</h4>'
        f"<b>{esc(one.answer)}</b>{drawn}<p>{esc(_sentence(one.text))}</p>{sure}</li>"
    )


def _bars(one: Answer) -> str:
    """Return totals of parts as small bars to the left (closer) and to the right (apart)."""
    largest = max((abs(v) for v in one.numbers.values()), default=0.0) or 1.0
    rows = "".join(
        f'<tr><th scope="row">{esc(name)}</th><td class="bar"><i class="{_side(value)}" '
        f'style="--w:{50 * abs(value) / largest:.1f}%"></i></td>'
        f'<td data-v="{value!r}">{_signed(value)}</td></tr>'
        for name, value in one.numbers.items()
    )
    caption = "Change of ln(1 − C) over all layers: left closer, right apart"
    return f'<table class="totals"><caption>{caption}</caption><tbody>{rows}</tbody></table>'


def _side(value: float) -> str:
    return "left" if value < 0 else "right"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _ruler(one: Answer) -> str:
    """Return correlations on a line from 0 to 1: a baseline, the prediction, the ceiling."""
    marks = "".join(
        f'<i class="{"own" if name == "predicted" else "other"}" '
        f'style="--at:{100 * min(max(value, 0.0), 1.0):.1f}%"></i>'
        for name, value in one.numbers.items()
    )
    told = items((f"{name} {value:.2f}" for name, value in one.numbers.items()), "r")
    return f'<div class="ruler" aria-hidden="true">{marks}</div>{told}'


# --- sentences ---------------------------------------------------------------------------------


def words_section(model: ModelReport, place: Place) -> str:
    """Return all sentences."""
    shown = "".join(f"<li>{esc(text)}</li>" for text in model.words)
    return f'<ol class="words">{shown}</ol>' if shown else absent(model.why("scan"))
