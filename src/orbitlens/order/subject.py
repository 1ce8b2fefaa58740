"""A model under audit: run in any cell of {with encoding, without} x {causal, full}.

Enters: a transformers model, inputs and what is asked of it. Leaves: predictions, and hidden states
where asked for.

Never surgery: one position id for all tokens takes the encoding out (theory S3), an explicit 4-D
mask sets who sees whom. The mask is always passed: transformers 5 reads constant position ids
without a mask as packed sequences, and lets each token see itself alone.
"""

import inspect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.feed import Encoding, Feed, Kind
from orbitlens.families.registry import feed_of
from orbitlens.order.asked import IN_STATES, Asked, AuditQuestion, is_score, usual_question
from orbitlens.running.devices import input_device
from orbitlens.running.images import image_of_patches
from orbitlens.running.switches import (
    constant_bias,
    constant_patch_positions,
    one_position,
    open_buffers,
    steer_attention,
    steer_encoder,
)


class Cell(StrEnum):
    """One cell of the 2 x 2."""

    PE_CAUSAL = "pe_causal"
    PE_FULL = "pe_full"
    NOPE_CAUSAL = "nope_causal"
    NOPE_FULL = "nope_full"

    @property
    def encoding(self) -> bool:
        """Whether positions are told apart."""
        return self in {Cell.PE_CAUSAL, Cell.PE_FULL}

    @property
    def causal(self) -> bool:
        """Whether a token sees earlier ones only."""
        return self in {Cell.PE_CAUSAL, Cell.NOPE_CAUSAL}


@dataclass(frozen=True, kw_only=True)
class Output:
    """What a run leaves: the prediction at the query, and the states of each layer if asked."""

    prediction: Float[Tensor, "batch outputs"]
    hidden: tuple[Float[Tensor, "batch items d_model"], ...] = ()  # of the items, embedding first
    last: Float[Tensor, "batch tokens d_model"] | None = None  # last layer, all tokens
    patterns: tuple[Float[Tensor, "batch head tokens tokens"], ...] = ()  # of attention, if asked


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model, how it is fed, what is asked of it, and which items stay in place."""

    model: Any
    feed: Feed
    family: str
    asked: Asked
    in_bits: bool  # predictions are distributions; otherwise a vector, whose change is relative
    pinned: tuple[int, ...] = ()  # items that never move, besides the query; -1 is the last
    query: int = -1  # item whose output is read (text); the class token for images
    mask_id: int | None = None  # the token that stands in the query's place
    places: tuple[int, ...] = ()  # where the same is asked in turn; the query is one of them
    companion: dict[str, Tensor] = field(default_factory=dict)  # the other tower's input, one row

    @property
    def own_cell(self) -> Cell:
        """The cell that is the model as it is."""
        return Cell.PE_CAUSAL if self.feed.causal else Cell.PE_FULL

    @property
    def cells(self) -> tuple[Cell, ...]:
        """The cells that can be reached; its own always can."""
        return tuple(cell for cell in Cell if self.obstacle(cell) is None)

    @property
    def compared(self) -> tuple[Cell, ...]:
        """The cells that an audit compares; a model that attends in full has no mask to remove."""
        return tuple(c for c in self.cells if self.feed.causal or not c.causal)

    def obstacle(self, cell: Cell) -> str | None:
        """Say why a cell cannot be reached, or None."""
        if cell is self.own_cell:
            return None
        if not cell.encoding and self.feed.obstacle_encoding:
            return f"encoding not ablatable: {self.feed.obstacle_encoding}"
        if cell.causal != self.own_cell.causal and self.feed.obstacle_mask:
            return f"mask not ablatable: {self.feed.obstacle_mask}"
        return None

    def movable(self, n_items: int) -> tuple[int, ...]:
        """Return the items that permutations move."""
        held = {place % n_items for place in self.pinned}
        if self.asked is not Asked.POOLED and self.feed.kind is not Kind.IMAGE:
            held.add(self.query % n_items)
        return tuple(place for place in range(n_items) if place not in held)

    @property
    def in_turn(self) -> tuple["Subject", ...]:
        """The same model asked at each of its places."""
        return tuple(replace(self, query=place) for place in self.places) or (self,)


def make_subject(
    model: Any,  # noqa: ANN401 - any transformers model
    question: AuditQuestion | None = None,
    *,
    stack: str | None = None,
    companion: dict[str, Tensor] | None = None,
) -> Subject:
    """Return a model ready for audit.

    Args:
        model: a transformers model.
        question: what is asked of it; by default what its class predicts, at its last item.
        stack: "encoder" or "decoder" of an encoder-decoder model.
        companion: input of the other tower, one row, as arguments of the model.

    Raises:
        UnknownFamilyError: nothing is known about how the family is fed.
        InputError: the model is not on the CPU.
    """
    feed = feed_of(model.config, stack=stack)
    device = input_device(model)
    if device.type != "cpu":
        raise InputError(f"the model is on {device}; audits run on the CPU: model.cpu().")
    chosen = question or AuditQuestion()
    asked, places = chosen.asked or usual_question(model, feed), chosen.places
    reads_first = asked in {Asked.CLASS, Asked.CLASS_STATE} and not feed.causal
    return Subject(
        model=model,
        feed=feed,
        family=str(model.config.model_type),
        asked=asked,
        in_bits=asked not in IN_STATES and not is_score(model),
        pinned=chosen.pinned,
        places=places,
        query=places[len(places) // 2] if places else (0 if reads_first else -1),
        mask_id=chosen.mask_id,
        companion=companion or {},
    )


def run(
    subject: Subject,
    items: Tensor,
    cell: Cell,
    *,
    positions: Int[Tensor, "*batch items"] | None = None,
    hidden: bool = False,
    patterns: bool = False,
) -> Output:
    """Run a batch of inputs in one cell.

    Args:
        subject: the model.
        items: token ids (batch, items), or patches (batch, items, channels, height, width).
        cell: what is switched on.
        positions: position ids in place of 0, 1, 2, ..., of all inputs or of each; only where the
            model takes ids.
        hidden: keep the states of every layer.
        patterns: keep the attention weights of every layer; the model must be one that computes
            them (`eager_attention`). None are kept where its family returns none.

    Raises:
        InputError: the cell cannot be reached with this model.
    """
    reason = subject.obstacle(cell)
    if reason is not None:
        raise InputError(f"{subject.family}: {reason}.")
    arguments = _arguments(subject, items, cell, positions)
    if hidden:
        arguments["output_hidden_states"] = True
    if patterns:
        arguments["output_attentions"] = True
    arguments |= keep_last(subject)
    mask = _visible(subject, items.shape[1], cell, window=_one_window(subject.feed))
    with torch.inference_mode(), _switched(subject, cell, mask):
        output = subject.model(**arguments)
    result = _output(subject, output, hidden)
    return replace(result, patterns=_patterns(subject, output)) if patterns else result


def run_plain(subject: Subject, items: Tensor) -> Output:
    """Run a batch with nothing but the items: the model as anyone would call it."""
    with torch.no_grad():
        output = subject.model(**_items_argument(subject, items))
    return _output(subject, output, False)


# --- what the model is called with -----------------------------------------------------------


def _items_argument(subject: Subject, items: Tensor) -> dict[str, Any]:
    batch = items.shape[0]
    kind = subject.feed.kind
    name = {Kind.IMAGE: "pixel_values", Kind.SEQ2SEQ_DECODER: "decoder_input_ids"}
    value = image_of_patches(items) if kind is Kind.IMAGE else _masked(subject, items)
    arguments: dict[str, Any] = {name.get(kind, "input_ids"): value}
    for key, row in subject.companion.items():
        arguments[key] = row.expand(batch, *row.shape[1:])
    if kind is Kind.SEQ2SEQ_ENCODER and "decoder_input_ids" not in arguments:
        start = int(subject.model.config.decoder_start_token_id or 0)
        arguments["decoder_input_ids"] = torch.full((batch, 1), start)
    if kind in {Kind.DECODER, Kind.SEQ2SEQ_DECODER, Kind.SEQ2SEQ_ENCODER}:
        arguments["use_cache"] = False
    return arguments


def _masked(subject: Subject, items: Tensor) -> Tensor:
    if subject.mask_id is None:
        return items
    masked = items.clone()
    masked[:, subject.query] = subject.mask_id
    return masked


def _arguments(
    subject: Subject, items: Tensor, cell: Cell, positions: Tensor | None
) -> dict[str, Any]:
    feed, n_items = subject.feed, items.shape[1]
    arguments = _items_argument(subject, items)
    if feed.ids is not None:
        ids = positions if positions is not None else torch.arange(n_items)
        if not cell.encoding:
            ids = ids[..., subject.query, None].expand_as(ids)  # the query keeps its own place
        arguments[feed.ids] = (ids + feed.first_id).expand(items.shape[0], n_items)
    elif positions is not None:
        raise InputError(f"{subject.family}: this model takes no position ids.")
    if feed.mask is not None:
        arguments[feed.mask] = mask_argument(subject, items.shape[0], n_items, cell)
    return arguments


def mask_argument(subject: Subject, batch: int, n_items: int, cell: Cell) -> Any:  # noqa: ANN401
    """Return the additive 4-D mask, or one for each type of layer where the model takes that."""
    feed, dtype = subject.feed, next(subject.model.parameters()).dtype

    def additive(window: int | None) -> Tensor:
        visible = _visible(subject, n_items, cell, window=window)
        mask = torch.zeros(visible.shape, dtype=dtype)
        mask.masked_fill_(~visible, torch.finfo(dtype).min)
        return mask.expand(batch, 1, *visible.shape)

    if not feed.by_layer_type:
        return additive(feed.window)
    return {"full_attention": additive(None), "sliding_attention": additive(feed.window)}


def _one_window(feed: Feed) -> int | None:
    """Return the sliding window of models in which all layers share one."""
    return None if feed.by_layer_type else feed.window


def _visible(
    subject: Subject, n_items: int, cell: Cell, *, window: int | None
) -> Bool[Tensor, "tokens tokens"]:
    """Return who sees whom. Special tokens of images rank last: they see all, unseen by patches."""
    n_special = subject.feed.n_special
    n_tokens = n_items + n_special
    if not cell.causal:
        return torch.ones(n_tokens, n_tokens, dtype=torch.bool)
    rank = torch.arange(n_tokens) - n_special
    rank[:n_special] = n_items
    back = rank[:, None] - rank[None, :]
    return (back >= 0) & (back < window) if window else back >= 0


@contextmanager
def _switched(subject: Subject, cell: Cell, mask: Tensor) -> Iterator[None]:
    """Turn off, for the time of one call, what arguments of the model do not reach."""
    feed, model = subject.feed, subject.model
    is_encoder = feed.kind is Kind.SEQ2SEQ_ENCODER
    with ExitStack() as stack:
        if feed.attention is not None:
            stack.enter_context(steer_attention(model, feed, mask, cell.encoding))
        if is_encoder:
            stack.enter_context(steer_encoder(model, mask))
        if subject.asked is Asked.MASKED:
            stack.enter_context(one_position(model, subject.query))
        if feed.mask_buffers is not None and not cell.causal:
            stack.enter_context(open_buffers(model, *feed.mask_buffers))
        if cell.encoding or feed.ids is not None:  # ids take every encoding away
            pass
        elif feed.encoding is Encoding.T5_BIAS:
            stack.enter_context(constant_bias(model.encoder if is_encoder else model.decoder))
        elif feed.kind is Kind.IMAGE:
            stack.enter_context(constant_patch_positions(model, feed.n_special))
        yield


# --- what it answers -------------------------------------------------------------------------


def keep_last(subject: Subject) -> dict[str, int]:
    """Return the argument that computes the last token's logits alone, where there is one."""
    takes = subject.query == -1 and "logits_to_keep" in _parameters(type(subject.model))
    return {"logits_to_keep": 1} if takes else {}


_known_parameters: dict[type, frozenset[str]] = {}


def _parameters(model_class: type) -> frozenset[str]:
    if model_class not in _known_parameters:
        names = inspect.signature(model_class.forward).parameters  # type: ignore[attr-defined]
        _known_parameters[model_class] = frozenset(names)
    return _known_parameters[model_class]


def _output(subject: Subject, output: Any, hidden: bool) -> Output:  # noqa: ANN401
    states = _states(subject, output) if hidden else ()
    offset = subject.feed.n_special
    return Output(
        prediction=_prediction(subject, output),
        hidden=tuple(state[:, offset:] for state in states),
        last=states[-1] if states else None,
    )


def _states(subject: Subject, output: Any) -> Sequence[Tensor]:  # noqa: ANN401
    states: Sequence[Tensor] = getattr(output, _TOWERS.get(subject.feed.kind, "") + "hidden_states")
    return states


def _patterns(subject: Subject, output: Any) -> tuple[Tensor, ...]:  # noqa: ANN401
    found = getattr(output, _TOWERS.get(subject.feed.kind, "") + "attentions", None)
    return () if found is None or any(each is None for each in found) else tuple(found)


_TOWERS = {Kind.SEQ2SEQ_ENCODER: "encoder_", Kind.SEQ2SEQ_DECODER: "decoder_"}


def _prediction(subject: Subject, output: Any) -> Tensor:  # noqa: ANN401
    if subject.asked in IN_STATES:
        states: Tensor = output.last_hidden_state
        return states.mean(dim=1) if subject.asked is Asked.POOLED else states[:, subject.query]
    logits: Tensor = output.logits if "logits" in output else output.prediction_logits
    if logits.ndim == 2:  # one prediction an input
        return logits
    at = subject.query if subject.feed.kind is not Kind.SEQ2SEQ_ENCODER else -1
    return logits[:, at if logits.shape[1] > 1 else 0]
