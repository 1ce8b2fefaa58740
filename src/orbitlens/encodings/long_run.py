"""Loss beyond the trained context, measured on long text.

Enters: a model and long rows of token ids. Leaves: nats a token, by position, and by how much more
the same tokens lose with all of a long context than with no more than the model was trained on.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.running.model import Model
from orbitlens.running.surprise import Rows, next_token_losses

BATCH_TOKENS = 4096  # of one forward call, about


def row_losses(model: Model, rows: Rows) -> Float[Tensor, "batch tokens"]:
    """Return the loss of every token of every row, the model run as anyone would."""
    size = max(1, BATCH_TOKENS // rows.shape[1])
    found = [
        next_token_losses(model.module(input_ids=part[:, :-1], use_cache=False).logits, part)
        for part in rows.split(size)
    ]
    return torch.cat(found)


def increases(
    model: Model, rows: Rows, trained: int, ratios: tuple[float, ...], *, n_first: int = 0
) -> list[Float[Tensor, " batch"]]:
    """Return by how much more the last tokens lose with a longer context, for each row and ratio.

    The judged tokens are the last quarter of a trained context. They are predicted once behind
    `ratio` times the trained context, once behind the last of it alone: the same tokens, so that
    what is hard to predict cancels. `n_first` special tokens open every context.
    """
    judged = max(1, trained // 4)
    short = torch.cat([rows[:, :n_first], rows[:, -(trained - n_first) - 1 :]], dim=1)
    base = row_losses(model, short)[:, -judged:].mean(dim=1)
    found = []
    for ratio in ratios:
        length = round(ratio * trained)
        part = torch.cat([rows[:, :n_first], rows[:, -(length - n_first) - 1 :]], dim=1)
        found.append(row_losses(model, part)[:, -judged:].mean(dim=1) - base)
    return found


def by_position(
    losses: Float[Tensor, "batch tokens"], n_bins: int
) -> tuple[Int[Tensor, " bin"], Float[Tensor, " bin"]]:
    """Return the mean loss in stretches of equal length, and where each of them ends."""
    n = losses.shape[1]
    ends = torch.linspace(0, n, n_bins + 1).round().long()[1:]
    pieces = losses.mean(dim=0).split((ends - torch.cat([ends.new_zeros(1), ends[:-1]])).tolist())
    return ends, torch.stack([piece.mean() for piece in pieces])
