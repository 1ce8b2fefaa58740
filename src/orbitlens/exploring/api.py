"""`explore`: a model -> the explorer, as a page in a notebook or a file.

Enters: a model. Leaves: an `Explorer`. The command `orbitlens explore` serves the same page.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orbitlens.exploring.data import ExplorerData, ModelFacts
from orbitlens.exploring.flow_data import first_flows
from orbitlens.exploring.page_file import page_html, write_page
from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.rooms import Told, frozen_rooms, rooms_or_why
from orbitlens.results.html import frame
from orbitlens.running.info import model_info
from orbitlens.running.model import Model, load

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
    model: Model, text: str | None = None, *, live: bool = False, told: Told | None = None
) -> ExplorerData:
    """Return what the page of a model holds; `live` where a server answers in place of a file."""
    explored, sentence = explored_of(model), text or SENTENCE
    rooms = rooms_or_why(explored, sentence)
    return ExplorerData(
        facts=model_facts(model),
        flow=first_flows(model, sentence),
        text=sentence,
        rooms=rooms,
        answers={} if live else frozen_rooms(explored, rooms, told),
    )


def model_facts(model: Model) -> ModelFacts:
    """Return what all rooms say of a model."""
    info = model_info(model.checkpoint)
    return ModelFacts(
        name=info.name,
        source=info.name,
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
