"""What the Flow room begins with: the named systems and, of the model, its heads and real tokens.

Enters: a model. Leaves: `FlowData`. Random weights and tokens are drawn here, by torch, so that the
page and the Python that it hands out start from the same numbers.
"""

from dataclasses import dataclass

import torch

from orbitlens.exploring.head_flows import ModelFlows, model_flows
from orbitlens.exploring.sentence import Prompt
from orbitlens.flows.examples import EXAMPLES, example_system
from orbitlens.running.model import Model

MOST_TOKENS = 128  # of a flow in the page
WIDTHS = (2, 3)  # of the named systems
MOST_HEADS = 4  # of a named system, each drawn with a seed of its own


@dataclass(frozen=True, kw_only=True)
class ExampleMaps:
    """The maps of a named system, for each width and head: rows of W and of V, d x d."""

    name: str
    what: str
    score: tuple[tuple[tuple[float, ...], ...], ...]  # width, head, d * d numbers
    value: tuple[tuple[tuple[float, ...], ...], ...]


@dataclass(frozen=True, kw_only=True)
class FlowData:
    """What the room begins with."""

    widths: tuple[int, ...]
    examples: tuple[ExampleMaps, ...]
    noise: tuple[tuple[float, ...], ...]  # R of the system "mixed", for each width
    tokens: tuple[tuple[float, ...], ...]  # for each width: MOST_TOKENS x d normal numbers
    points: tuple[tuple[float, ...], ...]  # the same for absolute positions
    model: ModelFlows


def first_flows(model: Model, given: Prompt) -> FlowData:
    """Return the named systems and the tokens that they move, and the flows of a model's heads."""
    return FlowData(
        widths=WIDTHS,
        examples=tuple(_maps(name) for name in EXAMPLES),
        noise=tuple(_normal(d, d, seed=2) for d in WIDTHS),
        tokens=tuple(_normal(MOST_TOKENS, d, seed=0) for d in WIDTHS),
        points=tuple(_normal(MOST_TOKENS, d, seed=1) for d in WIDTHS),
        model=model_flows(model, given),
    )


def _maps(name: str) -> ExampleMaps:
    systems = [[example_system(name, d_model=d, seed=k) for k in range(MOST_HEADS)] for d in WIDTHS]
    return ExampleMaps(
        name=name,
        what=EXAMPLES[name].what,
        # `system_of_maps` keeps W as it is, and V transposed.
        score=tuple(tuple(_flat(one.w_q[0]) for one in row) for row in systems),
        value=tuple(tuple(_flat(one.w_o[0].T) for one in row) for row in systems),
    )


def _normal(rows: int, columns: int, *, seed: int) -> tuple[float, ...]:
    generator = torch.Generator().manual_seed(seed)
    return _flat(torch.randn(rows, columns, generator=generator, dtype=torch.float64))


def _flat(values: torch.Tensor) -> tuple[float, ...]:
    return tuple(values.flatten().tolist())
