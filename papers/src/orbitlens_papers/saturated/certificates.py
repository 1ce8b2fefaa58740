"""Claim 3: a few bits, once fixed, decide what hard attention says; majority needs half of them.

Enters: a bench. Leaves: outcomes. A head that attends hard from a constant query looks where the
score is largest over all places and bits; fixing that one bit fixes what the head reads. So H heads
are constant once H bits are, while majority needs more than half (after Hahn, arXiv 1906.06755).
"""

from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch
from jaxtyping import Int, Integer
from numpy import ndarray
from torch import Tensor
from torch.nn import functional

from orbitlens.lab.fitting import fit
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.jobs import Arm, Job, run_arms
from orbitlens_papers.saturated.majority import Select, accepts, majority_of, random_strings
from orbitlens_papers.saturated.reader import (
    Reader,
    all_strings,
    random_reader,
    straight_through,
)
from orbitlens_papers.saturated.selection import hard, saturated
from orbitlens_papers.saturated.stack import random_stack

HEADS = (1, 2, 3)
TOLERANCE = 1e-9
Table = Integer[ndarray, " string"]  # 0 or 1 for every string, in the order of binary numbers


# --- the restriction -------------------------------------------------------------------------


def restriction(reader: Reader, length: int) -> dict[int, int]:
    """Return bits to fix, by place, that leave a hard reader nothing to see; one a head at most.

    Each head in turn takes the place and bit of the largest score among those still possible, the
    leftmost of equals; what is fixed later only removes other possibilities.
    """
    fixed: dict[int, int] = {}
    for scores in reader.score_table(length):
        possible = scores.clone()
        for place, bit in fixed.items():
            possible[place, 1 - bit] = -torch.inf
        place, bit = divmod(int(possible.argmax()), 2)
        fixed[place] = bit
    return fixed


def completions(length: int, fixed: dict[int, int]) -> Int[Tensor, "string tokens"]:
    """Return all strings with those bits."""
    free = [place for place in range(length) if place not in fixed]
    strings = torch.zeros(2 ** len(free), length, dtype=torch.long)
    strings[:, free] = all_strings(len(free))
    for place, bit in fixed.items():
        strings[:, place] = bit
    return strings


@torch.no_grad()
def spread(reader: Reader, select: Select, strings: Int[Tensor, "string tokens"]) -> float:
    """Return by how much the output varies over strings, relative to its size."""
    outputs = reader(strings, select)
    return float((outputs.max() - outputs.min()) / outputs.abs().max().clamp_min(1e-300))


@dataclass(frozen=True, kw_only=True)
class ReaderSetup:
    """One hard reader to train on majority."""

    n_heads: int
    steps: int
    length: int = 11


def train_hard(job: Job[ReaderSetup]) -> Reader:
    """Return a hard reader trained on majority."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    reader = random_reader(setup.n_heads, setup.length, generator, width=16).float()

    def loss_at(step: int) -> Tensor:
        bits = random_strings(128, setup.length, generator)
        logits = reader(bits, straight_through)
        return functional.binary_cross_entropy_with_logits(logits, majority_of(bits).float())

    fit(loss_at, torch.optim.Adam(reader.parameters(), lr=3e-3), steps=setup.steps)
    return reader.double()


def trained_readers(bench: Bench) -> list[Reader]:
    """Return hard readers trained on majority of eleven bits, by heads and seed."""

    def make() -> list[Reader]:
        seeds = list(bench.seeds)[: bench.pick(1, 4, 8)]
        numbers = [bench.generator("hard", seed).initial_seed() for seed in seeds]
        steps = bench.pick(40, 600, 4000)
        arms = {
            str(n): Arm(setup=ReaderSetup(n_heads=n, steps=steps), seeds=numbers) for n in HEADS
        }
        return [
            reader for readers in run_arms(bench, train_hard, arms).values() for reader in readers
        ]

    return bench.once("trained hard readers", make)


def _random_readers(bench: Bench, length: int, flat: float = 1.0) -> list[Reader]:
    n = bench.pick(8, 70, 200)
    generator = bench.generator(f"readers {length} {flat}", bench.seeds[0])
    return [random_reader(h, length, generator, spread=flat) for h in HEADS for _ in range(n)]


def few_bits_decide(bench: Bench) -> Outcome:
    """3a: how the output of hard readers varies once a bit a head is fixed, largest.

    Control: readers whose scores all tie, saturated, under the same restriction.
    """
    random_length, control_length = bench.pick(9, 12, 14), 9
    hard_ones = [(r, random_length) for r in _random_readers(bench, random_length)]
    hard_ones += [(r, 11) for r in trained_readers(bench)]
    spreads, bits, free = [], [], []
    for number, (reader, length) in enumerate(hard_ones):
        fixed = restriction(reader, length)
        excess = max(0, len(fixed) - len(reader.query))
        spreads.append(max(float(excess), spread(reader, hard, completions(length, fixed))))
        bits.append(len(fixed))
        free.append(spread(reader, hard, all_strings(length)))
        bench.step(0.5 + 0.4 * number / len(hard_ones))
    ties = _random_readers(bench, control_length, flat=0.0)
    control = [
        spread(r, saturated, completions(control_length, restriction(r, control_length)))
        for r in ties
    ]
    return Outcome(
        result=estimate.largest(spreads, of="readers"),
        control=estimate.smallest(control, of="readers"),
        data={
            "bits": bits,
            "heads": [len(reader.query) for reader, _ in hard_ones],
            "unrestricted": min(free),
            "trained": len(trained_readers(bench)),
        },
    )


# --- majority is out of reach ----------------------------------------------------------------


def wrong_on_majority(bench: Bench) -> Outcome:
    """3b: strings of eleven bits that a hard reader of up to three heads gets wrong, fewest.

    Control: the saturated head.
    """
    strings = all_strings(11)
    truth = majority_of(strings)
    rows: list[dict[str, Any]] = []
    for reader in trained_readers(bench):
        fixed = restriction(reader, 11)
        inside = majority_of(completions(11, fixed))
        sure = int(min(inside.sum(), (~inside).sum()))
        rows.append(
            {"heads": len(reader.query), "wrong": _wrong(reader, strings, truth), "sure": sure}
        )
    random = [float(_wrong(reader, strings, truth)) for reader in _random_readers(bench, 11)]
    return Outcome(
        result=estimate.smallest([float(row["wrong"]) for row in rows] + random, of="readers"),
        control=estimate.largest(
            [float((accepts(strings, saturated) != truth).sum())], of="saturated heads"
        ),
        data={"trained": rows, "random": min(random), "strings": len(strings)},
    )


@torch.no_grad()
def _wrong(reader: Reader, strings: Tensor, truth: Tensor) -> int:
    return int(((reader(strings, hard) > 0) != truth).sum())


# --- least certificates of any function ------------------------------------------------------


def least_certificate(table: Table) -> int:
    """Return the fewest bits that, once fixed to some values, make a function constant.

    All 3^n ways to fix some of n bits are tried: where both halves along an axis are constant and
    equal, so is the whole.

    >>> least_certificate(np.array([0, 1, 1, 0]))  # parity of two bits
    2
    """
    length = int(np.log2(len(table)))
    cube = np.asarray(table, dtype=np.int8).reshape((2,) * length)
    n_fixed = np.zeros((1,) * length, dtype=np.int8)
    for axis in range(length):
        first, second = np.split(cube, 2, axis=axis)
        both = np.where(first == second, first, -1).astype(np.int8)
        cube = np.concatenate([first, second, both], axis=axis)
        shape = [1] * length
        shape[axis] = 3
        n_fixed = n_fixed + np.array([1, 1, 0], dtype=np.int8).reshape(shape)
    return int(n_fixed[cube >= 0].min())


def balanced(values: Tensor) -> Table:
    """Return a function that is 1 for the larger half of the values."""
    return np.asarray((values > values.median()).long().numpy())


def deeper_too(bench: Bench) -> Outcome:
    """3c: least certificates of hard models of two layers over that of majority, mean.

    Control: random functions of the same bits.
    """
    lengths = bench.pick((5, 9), (5, 7, 9, 11), (5, 7, 9, 11, 13))
    n = bench.pick(6, 20, 50)
    curves: dict[str, list[float]] = {"hard, 2 layers": [], "random": [], "majority": []}
    ratios: list[list[float]] = [[], []]
    for length in lengths:
        strings = all_strings(length)
        need = least_certificate(majority_of(strings).long().numpy())
        deep, noise = [], []
        for seed in bench.seeds:
            generator = bench.generator(f"stacks {length}", seed)
            with torch.no_grad():
                tables = [
                    balanced(random_stack(length, generator)(strings, hard)) for _ in range(n)
                ]
            deep.append(fmean([least_certificate(table) for table in tables]))
            shuffled = [balanced(torch.rand(2**length, generator=generator)) for _ in range(n)]
            noise.append(fmean([least_certificate(table) for table in shuffled]))
        ratios = [[value / need for value in deep], [value / need for value in noise]]
        for name, value in zip(curves, (fmean(deep), fmean(noise), float(need)), strict=True):
            curves[name].append(value)
        bench.step((lengths.index(length) + 1) / len(lengths))
    return Outcome(
        result=estimate.mean(ratios[0]),
        control=estimate.mean(ratios[1]),
        data={"lengths": list(lengths), "certificates": curves},
    )
