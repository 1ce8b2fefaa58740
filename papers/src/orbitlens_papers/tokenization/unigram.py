"""Claims 1 to 3, 5b: unigram models over tokens; nothing is trained but counts.

Enters: a bench. Leaves: outcomes. Counts come from one text, losses from another.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.tokenization.dictionaries import Dictionary, blocks, byte_pairs, lzw
from orbitlens_papers.tokenization.source import (
    ENTROPY,
    SWITCH,
    UNIGRAM,
    block_loss,
    closed,
    shuffled,
    switching,
    text_of,
)

BPE_SIZES = (2, 4, 10, 30, 100, 300, 1000)
LZW_SIZES = (10, 30, 100, 300, 1000)
FEW_SIZES = (2, 4, 10, 100)  # at smoke scale
BLOCKS = (1, 2, 3, 4, 6, 8)
ORDERS = (1, 2, 4, 8)
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """Dictionaries of one kind, from small to large, on one text."""

    kind: str  # "bpe", "lzw", "blocks"
    order: int
    sizes: tuple[int, ...]  # for blocks: their lengths
    n_characters: int
    number: int  # of the generator
    is_shuffled: bool = False


def unigram_loss(dictionary: Dictionary, text: str, other: str) -> tuple[float, float]:
    """Return the loss of a unigram model over tokens, and the characters a token has.

    Its probabilities are counts in `text` plus a half; the loss is that on `other`, in nats a
    character.
    """
    size = len(dictionary)
    counts = torch.bincount(torch.tensor(dictionary.encode(text)), minlength=size) + 0.5
    cost = -(counts.double() / counts.sum()).log()
    ids = torch.tensor(dictionary.encode(other))
    lengths = torch.tensor([len(token) for token in dictionary.tokens])
    n = int(lengths[ids].sum())
    return float(cost[ids].sum()) / n, n / len(ids)


def climb(ladder: Ladder) -> list[Row]:
    """Return the loss for every size."""
    generator = torch.Generator().manual_seed(ladder.number)
    n = ladder.n_characters
    symbols = switching(ladder.order, n + n // 3, generator)
    if ladder.is_shuffled:
        symbols = shuffled(symbols, generator)
    text, other = text_of(symbols[:n]), text_of(symbols[n:])
    rows = []
    for size in ladder.sizes:
        if ladder.kind == "blocks":
            dictionary = blocks(size)
        else:
            dictionary = {"bpe": byte_pairs, "lzw": lzw}[ladder.kind](text, size)
        loss, length = unigram_loss(dictionary, text, other)
        rows.append(
            {
                "size": len(dictionary),
                "block": size if ladder.kind == "blocks" else 0,
                "loss": loss,
                "closed": closed(loss),
                "length": length,
            }
        )
    return rows


def ladders(
    bench: Bench, kind: str, sizes: tuple[int, ...], *, order: int = 2, is_shuffled: bool = False
) -> list[list[Row]]:
    """Return for each seed what a ladder of dictionaries gives."""
    long = 1_000_000
    todo = [
        Ladder(
            kind=kind,
            order=order,
            sizes=sizes,
            n_characters=bench.pick(long // 2 if kind == "blocks" else 60_000, long, 10 * long),
            number=bench.generator(f"text {order}", seed).initial_seed(),
            is_shuffled=is_shuffled,
        )
        for seed in bench.seeds
    ]
    name = f"{kind} {sizes} {order} {is_shuffled}"
    return bench.once(name, lambda: bench.map(climb, todo))


def _closed_at(by_seed: Sequence[Sequence[Row]], size: int) -> Estimate:
    return estimate.mean([row["closed"] for rows in by_seed for row in rows if row["size"] == size])


# --- claim 1: byte pairs ---------------------------------------------------------------------


def _pair_ladders(bench: Bench) -> list[list[Row]]:
    return ladders(bench, "bpe", bench.pick(FEW_SIZES, BPE_SIZES, BPE_SIZES))


def byte_pairs_close(bench: Bench, *, size: int) -> Outcome:
    """1a, 1b: share of the gap that a unigram model closes; control: characters shuffled."""
    by_seed = _pair_ladders(bench)
    noise = ladders(bench, "bpe", (10, 100), is_shuffled=True)
    return Outcome(
        result=_closed_at(by_seed, size),
        control=_closed_at(noise, size),
        data={"rows": by_seed, "shuffled": noise},
    )


def four_are_worse(bench: Bench) -> Outcome:
    """1c: the same with four tokens; control: ten."""
    by_seed = _pair_ladders(bench)
    return Outcome(result=_closed_at(by_seed, 4), control=_closed_at(by_seed, 10))


# --- claim 2: LZW ----------------------------------------------------------------------------


def phrases_close(bench: Bench) -> Outcome:
    """2a: share of the gap closed with a thousand phrases; control: characters shuffled."""
    by_seed = ladders(bench, "lzw", LZW_SIZES)
    noise = ladders(bench, "lzw", LZW_SIZES, is_shuffled=True)
    return Outcome(
        result=_closed_at(by_seed, 1000),
        control=_closed_at(noise, 1000),
        data={"rows": by_seed, "shuffled": noise},
    )


def larger_is_better(bench: Bench) -> Outcome:
    """2b: the largest rise of the loss from one size to the next."""
    return Outcome(result=_worst_rise(ladders(bench, "lzw", LZW_SIZES)))


def _worst_rise(by_seed: Sequence[Sequence[Row]]) -> Estimate:
    """Return the paired difference of the step between sizes that raises the mean loss most."""
    n_steps = len(by_seed[0]) - 1
    steps = [
        estimate.difference(
            [rows[k + 1]["loss"] for rows in by_seed], [rows[k]["loss"] for rows in by_seed]
        )
        for k in range(n_steps)
    ]
    return max(steps, key=lambda step: step.value)


def bound(size: int) -> float:
    """Return H / (1 - ε), ε = ln(1/δ) / (0.99 ln d), δ the rarest transition; constants as known.

    Infinite where ε is one or more: the bound says nothing there.
    """
    epsilon = math.log(1 / (1 - SWITCH)) / (0.99 * math.log(size))
    return ENTROPY / (1 - epsilon) if epsilon < 1 else math.inf


def below_bound(bench: Bench) -> Outcome:
    """2c: loss over bound, the largest over sizes; control: characters, at the largest size."""
    by_seed = ladders(bench, "lzw", LZW_SIZES)
    ratios = [row["loss"] / bound(row["size"]) for rows in by_seed for row in rows]
    return Outcome(
        result=estimate.largest(ratios, of="dictionaries"),
        control=estimate.smallest([UNIGRAM / bound(LZW_SIZES[-1])], of="dictionaries"),
        data={"bound": {str(size): bound(size) for size in LZW_SIZES}},
    )


# --- claim 3: blocks -------------------------------------------------------------------------


def blocks_as_predicted(bench: Bench) -> Outcome:
    """3a: largest gap to the closed form of first order; control: a source of second order."""
    own, other = (ladders(bench, "blocks", BLOCKS, order=order) for order in (1, 2))
    return Outcome(
        result=estimate.largest(_gaps(own), of="block lengths and seeds"),
        control=estimate.largest(_gaps(other), of="block lengths and seeds"),
        data={"first": own, "second": other},
    )


def _gaps(by_seed: Sequence[Sequence[Row]]) -> list[float]:
    return [abs(row["loss"] - block_loss(1, row["block"])) for rows in by_seed for row in rows]


# --- claim 5b: long memory -------------------------------------------------------------------


def ten_for_any_order(bench: Bench) -> Outcome:
    """5b: share of the gap that ten byte pairs close at order 8; control: characters shuffled."""
    by_order = {
        order: ladders(bench, "bpe", (10, 100), order=order)
        for order in bench.pick((1, 8), ORDERS, ORDERS)
    }
    noise = ladders(bench, "bpe", (10, 100), is_shuffled=True)
    return Outcome(
        result=_closed_at(by_order[8], 10),
        control=_closed_at(noise, 10),
        data={"orders": {str(order): rows for order, rows in by_order.items()}},
    )
