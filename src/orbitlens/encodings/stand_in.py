"""A long context by a short one: few tokens stand in for all that lies far back.

Enters: a model, rows of token ids no longer than its trained context, a length N. Leaves: what a
token at position N would lose, from runs of short rows alone. A row is

    first token | blocks of other texts, spread over all that is far | the near part, as it is

Blocks are given position ids far back, each drawn within its own stretch of the context, so that
relative angles and biases occur that no short text has; and ln w is added to the scores of their
keys, w the number of tokens that each of theirs stands for, so that attention is spread over as
many as in a context of N. The first token, which sees nothing but itself, counts once: many models
park attention there. The same rows at their own positions, each counted once, are what the loss is
compared with.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.feed import Feed, lowest
from orbitlens.running.model import Model
from orbitlens.running.surprise import Rows, next_token_losses

Ids = Int[Tensor, "batch tokens"]
BATCH_TOKENS = 4096  # of one forward call


@dataclass(frozen=True, kw_only=True)
class StandInShape:
    """How a short row is divided."""

    near: float = 0.25  # share of the row that is the end of the long context, as it is
    judged: float = 0.125  # share of the row whose predictions are judged, at its end
    blocks: int = 6  # that the rest is cut into


@dataclass(frozen=True, kw_only=True)
class StandIns:
    """Rows made of short texts, and which block each of their tokens belongs to."""

    rows: Rows  # the last token is only predicted
    block: Int[Tensor, " tokens"]  # -1: first token; the highest: near
    n_judged: int

    @property
    def n_tokens(self) -> int:
        """Tokens of a row that are run."""
        return self.rows.shape[1] - 1

    @property
    def n_near(self) -> int:
        """Tokens of the near part."""
        return int((self.block == self.block.max()).sum())


def stand_ins(
    contexts: Rows, generator: torch.Generator, shape: StandInShape | None = None
) -> StandIns:
    """Return rows whose far blocks come from other contexts than their near part.

    Args:
        contexts: one token more than the trained context each.
        generator: which contexts meet.
        shape: how rows are divided.

    Raises:
        InputError: there are too few contexts, or they are too short.
    """
    shape = shape or StandInShape()
    n = contexts.shape[1] - 1
    n_near = round(n * shape.near)
    width = (n - n_near - 1) // shape.blocks
    if width < 1 or len(contexts) < 2:
        raise InputError(
            f"{len(contexts)} contexts of {n} tokens: a stand-in for a long context needs 2 or "
            f"more of at least {4 * shape.blocks} tokens. Give a longer text."
        )
    parts, block = [contexts[:, :1]], [-1]
    for number in range(shape.blocks):
        others = contexts.roll(number % (len(contexts) - 1) + 1, dims=0)
        begin = int(torch.randint(1, n - width + 1, (1,), generator=generator))
        parts.append(others[:, begin : begin + width])
        block += [number] * width
    left = n - len(block)
    parts.append(contexts[:, n - left :])
    block += [shape.blocks] * left
    return StandIns(
        rows=torch.cat(parts, dim=1),
        block=torch.tensor(block),
        n_judged=max(1, min(left, round(n * shape.judged))),
    )


def far_positions(made: StandIns, length: int, generator: torch.Generator) -> Ids:
    """Return position ids of every row: blocks spread over the far part, the near one at its end.

    The far part is cut into as many stretches as there are blocks, and each block lies anywhere
    within its own.
    """
    n_rows, n = made.rows.shape[0], made.n_tokens
    ids = torch.zeros(n_rows, n, dtype=torch.int64)
    last = int(made.block.max())
    far = length - made.n_near - 1  # places behind the first token
    for number in range(last):
        inside = made.block == number
        width = int(inside.sum())
        low, high = number * far // last, (number + 1) * far // last - width
        starts = torch.randint(low, max(low, high) + 1, (n_rows, 1), generator=generator)
        ids[:, inside] = 1 + starts + torch.arange(width)
    near = made.block == last
    ids[:, near] = length - made.n_near + torch.arange(made.n_near)
    return ids


def log_counts(made: StandIns, length: int) -> Float[Tensor, "tokens tokens"]:
    """Return ln w for every query and key: how many tokens a key stands for, as that query sees it.

    Within a block tokens count once. For a token of another block, those of a far one count as
    many times as makes up for all that is far.
    """
    last = made.block.max()
    n_far = int(((made.block >= 0) & (made.block < last)).sum())
    weight = torch.tensor((length - made.n_near - 1) / n_far, dtype=torch.float64).log()
    queries, keys = made.block[:, None], made.block[None, :]
    return torch.where((keys >= 0) & (keys < queries), weight, torch.zeros_like(weight))


# --- runs ------------------------------------------------------------------------------------


def why_no_stand_in(feed: Feed) -> str | None:
    """Say why a family cannot be run at chosen positions with chosen counts; None if it can."""
    if not feed.causal:
        return "it is no causal decoder, so that no loss by position is defined"
    if feed.mask is None or feed.steer is not None:
        return "its code takes no mask of numbers, so that no token can count for many"
    if feed.ids is None and feed.encoding.value not in {"none"}:
        return "its code takes no position ids"
    return None


def stand_in_losses(
    model: Model, made: StandIns, length: int | None, generator: torch.Generator
) -> Float[Tensor, " batch"]:
    """Return each row's loss (nats a token) at the end of a context of `length` tokens.

    None for the length: the same rows where they are, every token counted once.

    Raises:
        InputError: the family cannot be run so.
    """
    reason = why_no_stand_in(model.feed)
    if reason is not None:
        raise InputError(f"{model.name}: {reason}.")
    n = made.n_tokens
    if length is None:
        ids, counts = torch.arange(n).expand(len(made.rows), n), torch.zeros(n, n)
    else:
        ids, counts = far_positions(made, length, generator), log_counts(made, length)
    found = []
    size = max(1, BATCH_TOKENS // n)
    for rows, places in zip(made.rows.split(size), ids.split(size), strict=True):
        losses = _losses(model, rows, places, counts)
        found.append(losses[:, -made.n_judged :].mean(dim=1))
    return torch.cat(found)


def _losses(model: Model, rows: Rows, ids: Tensor, counts: Tensor) -> Tensor:
    feed, dtype = model.feed, next(model.module.parameters()).dtype
    arguments: dict[str, Any] = {"input_ids": rows[:, :-1], "use_cache": False}
    if feed.ids is not None:
        arguments[feed.ids] = ids + feed.first_id
    assert feed.mask is not None
    arguments[feed.mask] = _mask(ids, counts, feed.window, dtype)
    if feed.by_layer_type:
        whole = _mask(ids, counts, None, dtype)
        by_type = {"full_attention": whole, "sliding_attention": arguments[feed.mask]}
        arguments[feed.mask] = by_type
    return next_token_losses(model.module(**arguments).logits, rows)


def _mask(ids: Tensor, counts: Tensor, window: int | None, dtype: torch.dtype) -> Tensor:
    n = ids.shape[1]
    back = ids[:, :, None] - ids[:, None, :]
    hidden = torch.ones(n, n, dtype=torch.bool).triu(1)[None]
    if window is not None:
        hidden = hidden | (back >= window)
    mask = counts.to(dtype).expand(len(ids), n, n).masked_fill(hidden, lowest(dtype))
    return mask[:, None]
