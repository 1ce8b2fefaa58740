"""Shared prefixes: what lies before the first change of an input is computed once.

Enters: a subject with a causal mask, inputs, and changed versions of them. Leaves: the prediction
on every changed one. Under a causal mask tokens before the first change keep their states, so keys
and values of the unchanged input serve all that begin like it; of neighbour swaps half of the
tokens need not be run. Inputs that begin to differ near each other run together, from the first
difference on.
"""

import copy
from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.families.feed import Kind
from orbitlens.order.asked import Asked
from orbitlens.order.subject import Cell, Subject, keep_last, mask_argument

TOGETHER = 256  # tokens run at once, if there are rows enough: fewer waste the processor
MOST_TOGETHER = 2048


def can_share(subject: Subject, cell: Cell) -> bool:
    """Say whether prefixes can be shared: a causal decoder that takes ids, mask and a cache."""
    feed = subject.feed
    takes_arguments = feed.ids is not None and feed.mask is not None and not feed.by_layer_type
    return (
        cell.causal
        and cell is subject.own_cell
        and feed.kind is Kind.DECODER
        and takes_arguments
        and subject.asked is Asked.NEXT
        and feed.crops_cache
        and feed.window is None  # such caches forget what they drop
        and subject.query == -1
        and hasattr(subject.model, "get_input_embeddings")
    )


def n_shared(
    rows: Int[Tensor, "rows items"], originals: Int[Tensor, "rows items"]
) -> Int[Tensor, " rows"]:
    """Return how many items of each row stand before the first that differs from its original."""
    return (rows == originals).long().cumprod(dim=1).sum(dim=1)


def prefix_of(subject: Subject, items: Int[Tensor, "samples items"]) -> Any:  # noqa: ANN401
    """Return keys and values of inputs as they are, a cache of transformers."""
    from transformers import DynamicCache

    cache = DynamicCache(config=subject.model.config)
    with torch.no_grad():
        _step(subject, items, 0, cache)
    return cache


def continued(
    subject: Subject,
    rows: Int[Tensor, "rows items"],
    owners: Int[Tensor, " rows"],
    shared: Int[Tensor, " rows"],
    prefix: Any,  # noqa: ANN401 - a cache of transformers
) -> Iterator[tuple[Int[Tensor, " some"], Int[Tensor, "some tail"], Float[Tensor, "some outputs"]]]:
    """Yield predictions on changed inputs: which rows, what was run of them, the predictions.

    Args:
        subject: the model.
        rows: changed inputs.
        owners: for each row, the input in `prefix` that it begins like.
        shared: how many items they have in common.
        prefix: what `prefix_of` returned.
    """
    n_items = rows.shape[1]
    for group in _groups(shared, n_items):
        begin = int(shared[group].min())
        own = copy.deepcopy(prefix)
        own.crop(begin - n_items)
        own.batch_select_indices(owners[group])
        tails = rows[group, begin:]
        with torch.no_grad():
            yield group, tails, _step(subject, tails, begin, own)


def _groups(shared: Tensor, n_items: int) -> Iterator[Int[Tensor, " some"]]:
    """Cut rows into groups that begin to differ near each other."""
    waiting: list[int] = []
    begin = n_tokens = 0
    for row in shared.argsort(stable=True).tolist():
        is_further, n_more = int(shared[row]) > begin, n_items - begin
        if waiting and (n_tokens + n_more > MOST_TOGETHER or (is_further and n_tokens >= TOGETHER)):
            yield torch.tensor(waiting)
            waiting = []
        if not waiting:
            begin, n_tokens = int(shared[row]), 0
        waiting.append(row)
        n_tokens += n_items - begin
    if waiting:
        yield torch.tensor(waiting)


def _step(subject: Subject, tail: Tensor, start: int, cache: Any) -> Tensor:  # noqa: ANN401
    """Run the tokens from `start` on, the ones before them being in the cache."""
    feed, (batch, n_tail) = subject.feed, tail.shape
    n_items = start + n_tail
    assert feed.ids is not None
    assert feed.mask is not None
    mask = mask_argument(subject, batch, n_items, subject.own_cell)[:, :, start:]
    ids = torch.arange(start, n_items) + feed.first_id
    output = subject.model(
        input_ids=tail,
        past_key_values=cache,
        use_cache=True,
        **{feed.ids: ids.expand(batch, n_tail), feed.mask: mask},
        **keep_last(subject),
    )
    logits: Tensor = output.logits
    return logits[:, -1]
