"""The map of heads: what a trace of another text and the weights say, to stand beside a sentence.

Enters: a model. Leaves: a `HeadMap`: for every head the share of S that was measured on the
package's passage (random tokens or noise where a model does not read it), what the default closure
predicts, and how the head's two maps lie. None of it knows the sentence on the page.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from orbitlens.exploring.passes import explored_of
from orbitlens.exploring.python_code import python_of
from orbitlens.reporting.data import rounded
from orbitlens.running.inputs import inputs_of
from orbitlens.scanning.api import scan
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE

TOKENS = 1024  # of the other text that are run
CLEAR = 0.01  # a share of S beyond which a head is said to gather or to spread


@dataclass(frozen=True, kw_only=True)
class MappedHead:
    """One head."""

    layer: int
    head: int
    elsewhere: float  # share of the change of S, measured on the other text
    predicted: float  # of that, by the default closure
    alignment: float  # of its two maps, in standard deviations of randomly turned ones
    orientation: str  # "aligned", "opposed" or "neutral"


@dataclass(frozen=True, kw_only=True)
class HeadMap:
    """Every head of the stack that reads the sentence."""

    heads: tuple[MappedHead, ...]
    text: str  # which other text it was
    n_tokens: int
    closure: str
    clear: float
    python: str


def read_heads(
    model: Any,  # noqa: ANN401 - an `Explored`, or what `load` takes
    *,
    told: Callable[[int, int | None], None] | None = None,
) -> HeadMap:
    """Return what is known of every head without the sentence.

    Raises:
        InputError: the model cannot be traced, for the reason given.
    """
    explored = explored_of(model)
    opened = explored.model
    inputs = inputs_of(opened, None)
    options = TraceOptions(
        max_tokens=TOKENS,
        n_kept=TOKENS,
        closures=("plain",),
        closure="plain",
        direction_closures=(DEFAULT_CLOSURE,),
        forecasts=(),
        flow_steps=1,
    )
    traced = trace(opened, inputs, options=options, progress=told)
    scanned = scan(opened, progress=told)
    stack = opened.architecture.stacks[-1].name
    pairs = zip(traced.layers, scanned.layers, strict=True)
    heads = [
        MappedHead(
            layer=known.layer,
            head=read.head,
            elsewhere=moved.share,
            predicted=moved.predicted[DEFAULT_CLOSURE],
            alignment=read.alignment_sigmas,
            orientation=read.orientation.value,
        )
        for known, weights in pairs
        if known.stack == stack
        for moved, read in zip(known.directions.heads, weights.heads, strict=True)
    ]
    return rounded(
        HeadMap(
            heads=tuple(heads),
            text=inputs.source.value,
            n_tokens=traced.n_tokens,
            closure=DEFAULT_CLOSURE,
            clear=CLEAR,
            python=python_of(explored, "read_heads", None),
        )
    )
