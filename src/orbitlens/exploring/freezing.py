"""A live page -> the same page as one offline file, in the state that a reader has it in.

Enters: an explored model, and what the page shows. Leaves: the text of a frozen page, which knows
the sentence, the cuts and the order in front of the reader, beside all single cuts and swaps.
"""

from dataclasses import dataclass

from orbitlens.exploring.answers import PageQuestion, PageWork, Told, work_of
from orbitlens.exploring.api import explore_data
from orbitlens.exploring.order_data import N_SHUFFLES
from orbitlens.exploring.page_file import page_html
from orbitlens.exploring.passes import Explored
from orbitlens.exploring.rooms import FROZEN_CUTS, FROZEN_SHUFFLES

FREEZE = "freeze"  # the question's name


@dataclass(frozen=True, kw_only=True)
class FrozenPage:
    """A page as a file."""

    name: str
    html: str


def freeze(explored: Explored, shown: PageQuestion, told: Told) -> FrozenPage:
    """Return the page of a model with what is shown, as text of a file.

    Raises:
        OrbitlensError: the sentence cannot be run.
    """
    data = explore_data(explored, told=told, shown=shown)
    return FrozenPage(name=data.facts.name, html=page_html(data))


def freezing_work(explored: Explored, shown: PageQuestion) -> PageWork:
    """Return what freezing runs through the model: cuts, orders, and a map of swaps a cell."""
    heads, swaps = work_of(explored, "heads", shown), work_of(explored, "swaps", shown)
    cells = work_of(explored, "usual", shown).rows // (N_SHUFFLES + 1)
    orders = 2 * cells * (FROZEN_SHUFFLES + swaps.length)
    tracing = round(heads.factor * heads.rows * heads.length / swaps.length)
    rows = FROZEN_CUTS + orders + cells * (swaps.rows + N_SHUFFLES) + tracing
    return PageWork(rows=rows, length=swaps.length)
