"""Neighbour swaps with shared prefixes: what lies before a swap is computed once.

Enters: a subject with a causal mask, and inputs. Leaves: the prediction on every input with each
pair of neighbours swapped. Under a causal mask tokens before the swap keep their states, so keys
and values of the unswapped input serve all swaps behind them; half of the tokens need not be run.
Swaps that are near each other run together, from the first of them on, where inputs are few.
"""

import copy
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.families.feed import Kind
from orbitlens.order.asked import Asked
from orbitlens.order.subject import Cell, Subject, keep_last, mask_argument

ROWS = 16  # inputs run at once, if there are swaps enough


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


def swapped_predictions(
    subject: Subject, items: Int[Tensor, "samples items"]
) -> tuple[Float[Tensor, "samples outputs"], Float[Tensor, "samples swaps outputs"], int]:
    """Return predictions on inputs, on all their neighbour swaps, and how many tokens were run."""
    from transformers import DynamicCache

    n_samples, n_items = items.shape
    pairs = list(pairwise(subject.movable(n_items)))
    n_together = max(1, ROWS // n_samples)
    cache = DynamicCache(config=subject.model.config)
    with torch.no_grad():
        start = _step(subject, items, 0, cache)
        n_tokens, swapped = items.numel(), []
        for first in range(0, len(pairs), n_together):
            group = pairs[first : first + n_together]
            begin = group[0][0]
            prefix = DynamicCache(config=subject.model.config)
            if begin:
                prefix = copy.deepcopy(cache)
                prefix.crop(begin - n_items)
                prefix.batch_repeat_interleave(len(group))
            tails = items[:, None].repeat(1, len(group), 1)
            for k, (place, other) in enumerate(group):
                tails[:, k, place], tails[:, k, other] = items[:, other], items[:, place]
            tails = tails.flatten(0, 1)[:, begin:]
            predictions = _step(subject, tails, begin, prefix)
            swapped.append(predictions.reshape(n_samples, len(group), -1))
            n_tokens += tails.numel()
    return start, torch.cat(swapped, dim=1), n_tokens


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
