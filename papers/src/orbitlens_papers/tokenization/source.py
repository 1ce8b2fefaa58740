"""The source: a binary chain that remembers one symbol, k places back.

Enters: order, length, generator. Leaves: symbols 0 and 1, or a text of a and b. A symbol is the
opposite of the one k places before it with probability 0.8: k first-order chains, interleaved.
All losses of the study are in nats a character.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor

from orbitlens.errors import InputError

SWITCH = 0.8
UNIGRAM = math.log(2.0)  # nats: a symbol on its own is a fair coin
ENTROPY = -SWITCH * math.log(SWITCH) - (1 - SWITCH) * math.log(1 - SWITCH)  # nats: the best loss
LETTERS = "ab"


def switching(order: int, n: int, generator: torch.Generator) -> Int[Tensor, " characters"]:
    """Return n symbols of the chain of that order, started in its stationary law."""
    if order < 1 or n < order:
        raise InputError(f"order {order} and {n} characters: expected an order of 1 to {n or 1}.")
    rows = -(-n // order)
    flips = torch.rand(rows, order, generator=generator) < SWITCH
    flips[0] = torch.rand(order, generator=generator) < 0.5  # the first symbols are fair coins
    return (flips.long().cumsum(dim=0) % 2).flatten()[:n]


def shuffled(symbols: Int[Tensor, " any"], generator: torch.Generator) -> Int[Tensor, " any"]:
    """Return the same symbols in random order: nothing is left to learn."""
    return symbols[torch.randperm(len(symbols), generator=generator)]


def text_of(symbols: Int[Tensor, " any"]) -> str:
    """Return symbols as letters.

    >>> text_of(torch.tensor([0, 1, 1]))
    'abb'
    """
    codes = symbols.to(torch.uint8) + ord(LETTERS[0])
    return bytes(codes.tolist()).decode()


def closed(loss: float) -> float:
    """Return which share of the gap between a coin and the source's entropy a loss closes.

    >>> closed(UNIGRAM), closed(ENTROPY)
    (0.0, 1.0)
    """
    return (UNIGRAM - loss) / (UNIGRAM - ENTROPY)


def block_loss(order: int, length: int) -> float:
    """Return the loss of the best unigram model over blocks of that length, in closed form.

    The first min(k, r) symbols of a block are coins, each other one costs the entropy:
    H + min(k, r) (ln 2 - H) / r.
    """
    return ENTROPY + min(order, length) * (UNIGRAM - ENTROPY) / length
