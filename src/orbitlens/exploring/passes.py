"""A model that is explored: opened once, and what it did with the last sentences kept.

Enters: a model, a sentence, and what is cut. Leaves: a `Pass`: the states around every layer, every
attention pattern as the model itself computed it, and its prediction. `watch` is told layer after
layer, and may raise to stop.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from jaxtyping import Float
from torch import Tensor

from orbitlens.checkpoint.zoo import find_in_zoo
from orbitlens.errors import InputError
from orbitlens.exploring.sentence import Prompt, Sentence, sentence_of
from orbitlens.families.architecture import Stack
from orbitlens.families.feed import Kind
from orbitlens.heads.layers import AttentionLayer
from orbitlens.order.subject import Cell, Subject, run
from orbitlens.running.capture import LayerStates, capturing, layer_modules
from orbitlens.running.loading import eager_attention
from orbitlens.running.model import Model, load
from orbitlens.running.removal import Part, parse_cut, without_parts
from orbitlens.running.threads import threads_for

ENCODING, MASK = "encoding", "mask"  # the two cuts that are cells of the 2 x 2
MOST_CUTS = 64
KEPT = 6  # passes
Watch = Callable[[int, int], None]  # layers done, of how many


@dataclass(frozen=True, kw_only=True)
class Pass:
    """One run of a sentence."""

    stack: Stack
    layers: tuple[LayerStates, ...]
    patterns: tuple[Float[Tensor, "head tokens tokens"], ...]  # none where the family gives none
    prediction: Float[Tensor, " outputs"]
    cell: Cell


@dataclass(frozen=True, kw_only=True)
class Explored:
    """A model under exploration."""

    model: Model  # under the names of its running module
    source: str  # what `load` takes to open it again
    kept: OrderedDict[tuple[Prompt, tuple[str, ...]], Pass] = field(default_factory=OrderedDict)

    orders: OrderedDict[Prompt, dict[tuple[Cell, int], Tensor]] = field(default_factory=OrderedDict)
    layers: dict[int, AttentionLayer] = field(default_factory=dict)  # weights, read once

    def layer(self, index: int, stack: str) -> AttentionLayer:
        """Return the attention weights of a layer of the stack that is followed."""
        if index not in self.layers:
            self.layers[index] = self.model.layer(index, stack=stack)
        return self.layers[index]

    def predictions_of(self, given: Prompt) -> dict[tuple[Cell, int], Tensor]:
        """Return the place where predictions on a sentence as it is are kept, by cell."""
        found = self.orders.setdefault(given, {})
        self.orders.move_to_end(given)
        while len(self.orders) > KEPT:
            self.orders.popitem(last=False)
        return found

    def forget(self) -> None:
        """Drop what is kept."""
        self.kept.clear()
        self.orders.clear()
        self.layers.clear()


def explored_of(model: Any) -> Explored:  # noqa: ANN401 - an `Explored`, or what `load` takes
    """Return a model ready to be explored."""
    if isinstance(model, Explored):
        return model
    opened = load(model)
    return Explored(model=opened.running, source=source_of(opened))


def source_of(model: Model) -> str:
    """Return what `load` takes to open a model again: a name of the zoo, else its path."""
    return model.name if find_in_zoo(model.name) is not None else str(model.checkpoint.path)


def stack_of(model: Model, subject: Subject) -> Stack:
    """Return the stack whose tokens are followed: the one that reads the sentence."""
    stacks = model.architecture.stacks
    return stacks[0] if subject.feed.kind is Kind.SEQ2SEQ_ENCODER else stacks[-1]


def pass_of(
    explored: Explored, given: Prompt, cuts: Sequence[str] = (), watch: Watch | None = None
) -> Pass:
    """Run a sentence with some parts cut; the last few passes are kept.

    Raises:
        InputError: the sentence cannot be run, or something cannot be cut.
    """
    key = (given, tuple(sorted(set(cuts))))
    if key not in explored.kept:
        sentence = sentence_of(explored.model, given)
        explored.kept[key] = run_sentence(explored.model, sentence, key[1], watch)
        while len(explored.kept) > KEPT:
            explored.kept.popitem(last=False)
    explored.kept.move_to_end(key)
    return explored.kept[key]


def run_sentence(
    model: Model, sentence: Sentence, cuts: Sequence[str] = (), watch: Watch | None = None
) -> Pass:
    """Run a sentence with some parts cut."""
    subject = sentence.subject(model)
    stack, cell = stack_of(model, subject), cell_of(subject, cuts)
    parts = parts_of(cuts)
    layers: list[LayerStates] = []

    def sink(where: Stack, layer: int, states: LayerStates) -> None:
        if where.name == stack.name:
            layers.append(states)

    with (
        threads_for(model.n_parameters),
        model.evaluating() as module,
        eager_attention(module),
        watched(model, stack, watch),
        without_parts(model, parts, stack=stack.name),
        capturing(module, model.checkpoint, sink),
    ):
        output = run(subject, sentence.items, cell, patterns=True)
    return Pass(
        stack=stack,
        layers=tuple(layers),
        patterns=tuple(pattern[0] for pattern in output.patterns),
        prediction=output.prediction[0],
        cell=cell,
    )


def parts_of(cuts: Sequence[str]) -> list[Part]:
    """Return the parts among cuts, without the encoding and the mask."""
    if len(cuts) > MOST_CUTS:
        raise InputError(f"{len(cuts)} cuts were asked for; expected at most {MOST_CUTS}.")
    return [parse_cut(cut) for cut in cuts if cut not in {ENCODING, MASK}]


def cell_of(subject: Subject, cuts: Sequence[str]) -> Cell:
    """Return the cell of the 2 x 2 that a model is in with these cuts."""
    own = subject.own_cell
    if MASK in cuts and not own.causal:
        raise InputError("mask: this model attends in full and has no mask to cut.")
    encoding = own.encoding and ENCODING not in cuts
    causal = own.causal and MASK not in cuts
    return next(c for c in Cell if c.encoding == encoding and c.causal == causal)


@contextmanager
def watched(model: Model, stack: Stack, watch: Watch | None) -> Iterator[None]:
    """Tell `watch` of every layer that begins; whatever it raises stops the run there."""
    if watch is None:
        yield
        return
    blocks = layer_modules(model.module, model.checkpoint, stack)
    modules, done = dict(model.module.named_modules()), 0

    def hook(module: object, args: object) -> None:
        nonlocal done
        watch(done % len(blocks), len(blocks))
        done += 1

    names = dict.fromkeys(names.block for names in blocks)
    handles = [modules[name].register_forward_pre_hook(hook) for name in names]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
