"""A model that reads a string of bits with one layer of attention from a constant query.

Enters: bits. Leaves: one number a string. How it attends is given from outside: softly, saturated
or hard. Hard readers are trained with straight-through gradients: forward hard, backward soft.
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from orbitlens.lab.fitting import seeded
from orbitlens_papers.saturated.majority import Select
from orbitlens_papers.saturated.selection import hard


def straight_through(scores: Float[Tensor, "*any tokens"]) -> Float[Tensor, "*any tokens"]:
    """Return hard weights whose gradient is that of softmax."""
    soft = torch.softmax(scores, dim=-1)
    return hard(scores.detach()) + soft - soft.detach()


class Reader(nn.Module):
    """Heads with one query each look at tokens embed[bit] + place; an MLP maps what they read."""

    def __init__(self, n_heads: int, width: int, places: Float[Tensor, "position d_model"]) -> None:
        """Build a reader of strings up to as many bits as there are places."""
        super().__init__()
        self.embed = nn.Parameter(torch.randn(2, width) / math.sqrt(width))
        self.places = nn.Parameter(places.clone())
        self.query = nn.Parameter(torch.randn(n_heads, width))
        self.value = nn.Parameter(torch.randn(n_heads, width, width) / math.sqrt(width))
        self.inner = nn.Linear(n_heads * width, 2 * width)
        self.outer = nn.Linear(2 * width, 1)

    def forward(
        self,
        bits: Int[Tensor, "string tokens"],
        select: Select,
        there: Bool[Tensor, "string tokens"] | None = None,
    ) -> Float[Tensor, " string"]:
        """Return one number a string; `there` says which tokens are no padding."""
        x = self.embed[bits] + self.places[: bits.shape[1]]
        scores = torch.einsum("btd,hd->bht", x, self.query)
        if there is not None:
            scores = scores.masked_fill(~there[:, None], -math.inf)
        read = torch.einsum("bht,btd,hde->bhe", select(scores), x, self.value)
        logits: Tensor = self.outer(torch.relu(self.inner(read.flatten(1))))
        return logits[:, 0]

    def score_table(self, length: int) -> Float[Tensor, "head tokens 2"]:
        """Return the score of every place and bit, by head."""
        x = self.places[:length, None] + self.embed
        return torch.einsum("tbd,hd->htb", x, self.query).detach()


def random_reader(
    n_heads: int, length: int, generator: torch.Generator, *, width: int = 8, spread: float = 1.0
) -> Reader:
    """Return a reader with random weights and random places, in float64.

    Args:
        n_heads: heads.
        length: bits of a string.
        generator: where the weights come from.
        width: of a token.
        spread: of the scores; at 0 all tie.
    """
    with seeded(int(torch.randint(2**31, (1,), generator=generator))):
        reader = Reader(n_heads, width, torch.randn(length, width)).double()
    with torch.no_grad():
        reader.query.mul_(spread)
    return reader


def all_strings(length: int) -> Int[Tensor, "string tokens"]:
    """Return all strings of that many bits, in the order of binary numbers.

    >>> all_strings(2).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    places = torch.arange(length - 1, -1, -1)
    return (torch.arange(2**length)[:, None] >> places) & 1
