"""What the explorer's page holds, as frozen dataclasses.

Enters: what was read and computed of a model. Leaves: `ExplorerData`, which becomes the JSON inside
the page. `answers` are what a frozen page knows in place of a server: by the name of a question,
then by `answer_key` of its parameters without the sentence, of which there is one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from orbitlens.exploring.flow_data import FlowData
from orbitlens.results.codec import encode

FROZEN = (
    "This needs the running model, and this page is a frozen file. Run `orbitlens explore {model}`."
)


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """What all rooms say of the model."""

    name: str
    source: str  # what `load` takes to open it again; its name where that would be a path
    family: str
    parameters: int
    n_layers: int
    n_heads: int
    d_model: int
    d_head: int
    position: str
    causal: bool
    reads: str  # "text", "tokens" (no tokenizer), "images" or "audio"


@dataclass(frozen=True, kw_only=True)
class ExplorerData:
    """One explorer; rooms add their own parts by name."""

    facts: ModelFacts
    flow: FlowData
    text: str  # the sentence that rooms begin with
    opens: str = ""  # the state that it opens with, as an address has it
    rooms: Mapping[str, Any] = field(default_factory=dict)  # "model", "order": what they begin with
    answers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def payload(self, *, live: bool) -> dict[str, Any]:
        """Return the JSON of the page; `live` where a server answers what the page asks."""
        return {
            "model": encode(self.facts),
            "flow": encode(self.flow),
            "text": self.text,
            "opens": self.opens,
            "rooms": encode(self.rooms),
            "frozen": encode(self.answers),
            "live": live,
            "why_frozen": FROZEN.format(model=self.facts.source),
        }


def answer_key(parameters: Mapping[str, Any]) -> str:
    """Return the name of an answer: its parameters as JSON, names in order, as the page writes it.

    >>> answer_key({"text": "a ü", "layer": 2})
    '{"layer":2,"text":"a ü"}'
    """
    return json.dumps(parameters, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
