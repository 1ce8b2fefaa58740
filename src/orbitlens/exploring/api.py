"""`explore`: a model -> the explorer, as a page in a notebook or a file.

Enters: a model. Leaves: an `Explorer`. The command `orbitlens explore` serves the same page.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from orbitlens.errors import OrbitlensError
from orbitlens.exploring.answers import PageQuestion
from orbitlens.exploring.data import ExplorerData, ModelFacts
from orbitlens.exploring.flow_data import first_flows
from orbitlens.exploring.page_file import page_html, write_page
from orbitlens.exploring.passes import Explored, explored_of
from orbitlens.exploring.rooms import Told, frozen_rooms, rooms_or_why, start_of
from orbitlens.exploring.sentence import Prompt
from orbitlens.results.html import frame
from orbitlens.running.info import model_info
from orbitlens.running.model import Model, load
from orbitlens.running.threads import threads_for_layers

HEIGHT = 820  # of the frame in a notebook, in pixels
SENTENCE = "To be, or not to be, that is the question"


@dataclass(frozen=True, kw_only=True, repr=False)
class Explorer:
    """A model's explorer; a notebook shows the page itself."""

    data: ExplorerData

    @cached_property
    def html(self) -> str:
        """The frozen page: one HTML file that needs nothing else."""
        return page_html(self.data)

    def __repr__(self) -> str:
        """Return what it is and what to ask next."""
        return f"Explorer of {self.data.facts.name}.\nSee save(path), or show it in a notebook."

    def _repr_html_(self) -> str:
        """Return the page in a frame."""
        return frame(self.html, HEIGHT)

    def save(self, path: str | Path) -> Path:
        """Write the frozen page, whole or not at all; return the file.

        Raises:
            InputError: it cannot be written there.
        """
        return write_page(self.data, path)


def explore(model: Any, text: str | None = None) -> Explorer:  # noqa: ANN401 - what `load` takes
    """Return the explorer of a model.

    Args:
        model: a `Model`, or anything `load` takes.
        text: the sentence that its rooms begin with.

    Raises:
        OrbitlensError: it is no model.
    """
    return Explorer(data=explore_data(load(model), text))


def explore_data(
    model: Model | Explored,
    text: str | None = None,
    *,
    live: bool = False,
    told: Told | None = None,
    shown: PageQuestion | None = None,
) -> ExplorerData:
    """Return what the page of a model holds.

    Args:
        model: the model.
        text: the sentence that its rooms begin with.
        live: whether a server answers in place of the page.
        told: called with answers done and their number.
        shown: what a page shows that is frozen: sentence, cuts, order and state.
    """
    explored = explored_of(model)
    if not live:  # a file that is passed on says a model's name, and not where it lay
        explored = replace(explored, source=explored.model.name)
    with threads_for_layers(explored.model.architecture.widest):
        start = _start(explored, text or SENTENCE, shown)
        rooms = rooms_or_why(explored, start)
        return ExplorerData(
            facts=model_facts(explored),
            flow=first_flows(explored.model, Prompt(**start)),
            text=text or start.get("text", SENTENCE),
            opens="" if shown is None else shown.state,
            rooms=rooms,
            answers={} if live else frozen_rooms(explored, rooms, told, shown=shown),
        )


def _start(explored: Explored, text: str, shown: PageQuestion | None) -> dict[str, Any]:
    """Return the parameters of the sentence that a page begins with."""
    if shown is not None:
        given = vars(shown.given).items()
        return {name: value for name, value in given if value is not None}
    try:
        return start_of(explored, text)
    except OrbitlensError:  # it cannot be run: the rooms say why when they try
        return {"text": text}


def model_facts(explored: Explored) -> ModelFacts:
    """Return what all rooms say of a model."""
    model = explored.model
    info = model_info(model.checkpoint)
    return ModelFacts(
        name=info.name,
        source=explored.source,
        family=info.family,
        parameters=info.parameters,
        n_layers=info.n_layers,
        n_heads=info.n_heads,
        d_model=info.d_model,
        d_head=info.d_head,
        position=info.position.value,
        causal=info.causal,
        reads=_reads(model),
    )


def _reads(model: Model) -> str:
    kind = {"pixel_values": "images", "input_features": "audio"}.get(model.main_input)
    if kind is not None:
        return kind
    return "tokens" if model.tokenizer is None else "text"
