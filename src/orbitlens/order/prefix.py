"""Neighbour swaps with shared prefixes: what lies before a swap is computed once.

Enters: a subject with a causal mask, and inputs. Leaves: the prediction on every input with each
pair of neighbours swapped. Under a causal mask tokens before the swap keep their states, so keys
and values of the unswapped input serve all swaps behind them; half of the tokens need not be run.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.families.feed import Kind
from orbitlens.order.subject import Cell, Subject, mask_argument


def can_share(subject: Subject, cell: Cell) -> bool:
    """Say whether prefixes can be shared: a causal decoder that takes ids, mask and a cache."""
    feed = subject.feed
    takes_arguments = feed.ids is not None and feed.mask is not None and not feed.by_layer_type
    return (
        cell.causal
        and cell is subject.own_cell
        and feed.kind is Kind.DECODER
        and takes_arguments
        and subject.has_head
        and feed.crops_cache
        and feed.window is None  # such caches forget what they drop
        and subject.query == -1
        and hasattr(subject.model, "get_input_embeddings")
    )


def swapped_predictions(
    subject: Subject, items: Int[Tensor, "samples items"]
) -> tuple[Float[Tensor, "samples outputs"], Float[Tensor, "samples swaps outputs"], int]:
    """Return predictions on inputs, on all their neighbour swaps, and how many tokens were run."""
    from transformers import DynamicCache

    n_items = items.shape[1]
    movable = subject.movable(n_items)
    cache = DynamicCache(config=subject.model.config)
    with torch.no_grad():
        start = _step(subject, items, 0, cache)
        n_tokens = items.numel()
        swapped = []
        for place in reversed(movable[:-1]):
            # The longest prefixes first: the cache is full here, and loses what lies behind.
            cache.crop(place - n_items)
            tail = items[:, place:].clone()
            tail[:, 0], tail[:, 1] = items[:, place + 1], items[:, place]
            swapped.append(_step(subject, tail, place, cache))
            n_tokens += tail.numel()
    return start, torch.stack(swapped[::-1], dim=1), n_tokens


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
    )
    logits: Tensor = output.logits
    return logits[:, -1]
