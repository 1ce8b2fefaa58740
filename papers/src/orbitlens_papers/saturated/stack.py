"""Two layers of attention over bits: every token attends, then a constant query reads.

Enters: bits. Leaves: one number a string, with hard or saturated attention.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from orbitlens.lab.fitting import seeded
from orbitlens_papers.saturated.majority import Select
from orbitlens_papers.saturated.reader import Reader, random_reader


class Stack(nn.Module):
    """A layer of self-attention with a residual connection and an MLP, below a reader."""

    def __init__(self, length: int, width: int, n_heads: int, reader: Reader) -> None:
        """Build the layer below a reader."""
        super().__init__()
        self.embed = nn.Parameter(torch.randn(2, width))
        self.places = nn.Parameter(torch.randn(length, width))
        self.bilinear = nn.Parameter(torch.randn(n_heads, width, width) / math.sqrt(width))
        self.value = nn.Parameter(torch.randn(n_heads, width, width) / math.sqrt(width))
        self.inner = nn.Linear(width, 2 * width)
        self.outer = nn.Linear(2 * width, width)
        self.reader = reader

    def forward(
        self, bits: Int[Tensor, "string tokens"], select: Select
    ) -> Float[Tensor, " string"]:
        """Return one number a string."""
        x = self.embed[bits] + self.places
        scores = torch.einsum("btd,hde,bse->bhts", x, self.bilinear, x)
        x = x + torch.einsum("bhts,bsd,hde->bte", select(scores), x, self.value)
        x = x + self.outer(torch.relu(self.inner(x)))
        weights = select(torch.einsum("btd,hd->bht", x, self.reader.query))
        read = torch.einsum("bht,btd,hde->bhe", weights, x, self.reader.value)
        logits: Tensor = self.reader.outer(torch.relu(self.reader.inner(read.flatten(1))))
        return logits[:, 0]


def random_stack(length: int, generator: torch.Generator, *, width: int = 8) -> Stack:
    """Return a stack with random weights and two heads a layer, in float64."""
    reader = random_reader(2, length, generator, width=width)
    with seeded(int(torch.randint(2**31, (1,), generator=generator))):
        return Stack(length, width, 2, reader).double()
