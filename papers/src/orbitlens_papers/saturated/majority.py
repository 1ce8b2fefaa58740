"""Claims 1 and 2: one saturated head decides majority, and it is the limit of sharp softmax.

Enters: a bench. Leaves: outcomes. MAJ(x) = 1 if more than half of the bits of x are 1. The head has
equal scores and values of +1 and -1, and accepts where the mean is above zero (arXiv 2106.16213).
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.saturated.selection import hard, saturated

Bits = Int[Tensor, "string tokens"]
Select = Callable[[Tensor], Tensor]  # scores to weights

LENGTHS = (5, 11, 101, 1001, 10001)
SHARPNESS = (1, 2, 4, 8, 16, 32, 64)
ROUNDING = 1e-15  # of a weight in float64


def majority_of(bits: Bits) -> Bool[Tensor, " string"]:
    """Return whether more than half of the bits are 1."""
    return 2 * bits.sum(dim=1) > bits.shape[1]


def accepts(
    bits: Bits, select: Select, scores: Float[Tensor, "string tokens"] | None = None
) -> Bool[Tensor, " string"]:
    """Return what one head with values +1 and -1 says; scores are equal where none are given."""
    values = 2.0 * bits.double() - 1.0
    weights = select(torch.zeros_like(values) if scores is None else scores)
    return (weights * values).sum(dim=1) > 0


def random_strings(n: int, length: int, generator: torch.Generator) -> Bits:
    """Return strings of fair coins."""
    return torch.randint(2, (n, length), generator=generator)


def narrow_strings(n: int, length: int, generator: torch.Generator) -> Bits:
    """Return strings of odd length that one bit decides, half of them with more ones."""
    order = torch.rand(n, length, generator=generator).argsort(dim=1)
    ones = length // 2 + (torch.arange(n) % 2)
    return (order < ones[:, None]).long()


# --- claim 1: majority -----------------------------------------------------------------------


def decides_majority(bench: Bench) -> Outcome:
    """1a: strings that the head gets wrong, random and narrow ones; control: hard attention."""
    wrong: dict[str, list[float]] = {"saturated": [], "hard": []}
    n = bench.pick(100, 400, 2000)
    for length in LENGTHS:
        for make in (random_strings, narrow_strings):
            for seed in bench.seeds:
                bits = make(n, length, bench.generator(f"{make.__name__} {length}", seed))
                truth = majority_of(bits)
                for name, select in (("saturated", saturated), ("hard", hard)):
                    wrong[name].append(float((accepts(bits, select) != truth).sum()))
    return Outcome(
        result=estimate.largest(wrong["saturated"], of=f"sets of {n} strings"),
        control=estimate.smallest(wrong["hard"], of=f"sets of {n} strings"),
        data=_accuracies(bench),
    )


def _accuracies(bench: Bench) -> dict[str, Any]:
    """Return how often heads are right on random strings, by length and kind of attention.

    Soft heads have scores that differ by a little noise: sharper ones see less of the string.
    """
    lengths = (5, 11, 21, 51, 101, 201, 501, 1001, 10001)
    n = bench.pick(200, 1000, 4000)
    rows: dict[str, list[float]] = {}
    for length in lengths:
        generator = bench.generator(f"accuracies {length}", bench.seeds[0])
        bits = random_strings(n, length, generator)
        noise = 0.25 * torch.randn(bits.shape, generator=generator, dtype=torch.float64)
        accepted = {"saturated": accepts(bits, saturated), "hard": accepts(bits, hard)}
        for sharpness in (1, 4, 16):
            accepted[f"soft {sharpness}"] = accepts(bits, softmax, sharpness * noise)
        for name, answers in accepted.items():
            rows.setdefault(name, []).append(float((answers == majority_of(bits)).double().mean()))
    return {"lengths": list(lengths), "accuracies": rows}


softmax: Select = partial(torch.softmax, dim=-1)


# --- claim 2: the limit ----------------------------------------------------------------------


def is_limit(bench: Bench) -> Outcome:
    """2a: distance of softmax(c a) from the saturated weights over n exp(-c gap), largest.

    Control: hard weights, which are another limit where scores tie.
    """
    ratios: dict[str, list[float]] = {"saturated": [], "hard": []}
    curves: dict[str, list[float]] = {}
    for length in (4, 16, 64):
        generator = bench.generator(f"scores {length}", bench.seeds[0])
        scores = torch.randint(-3, 4, (bench.pick(100, 1000, 10_000), length), generator=generator)
        scores[::2, :2] = scores[::2].amax(dim=1, keepdim=True)  # half of them tie for sure
        for sharpness in SHARPNESS:
            allowed = bound(scores, sharpness) + ROUNDING
            for name, select in (("saturated", saturated), ("hard", hard)):
                far = distance(scores, sharpness, select)
                ratios[name].append(float((far / allowed).max()))
                if name == "saturated":
                    curves.setdefault(str(length), []).append(float(far.max()))
    return Outcome(
        result=estimate.largest(ratios["saturated"], of="lengths and sharpnesses"),
        control=estimate.largest(ratios["hard"], of="lengths and sharpnesses"),
        data={"sharpness": list(SHARPNESS), "distances": curves},
    )


def distance(
    scores: Int[Tensor, "string tokens"], sharpness: int, select: Select
) -> Float[Tensor, " string"]:
    """Return the largest difference between softmax(c a) and other weights of the same scores."""
    soft = torch.softmax(sharpness * scores.double(), dim=-1)
    return (soft - select(scores)).abs().amax(dim=1)


def bound(scores: Int[Tensor, "string tokens"], sharpness: int) -> Float[Tensor, " string"]:
    """Return n exp(-c gap); the gap is that between the largest score and the next lower one."""
    top = scores.amax(dim=1, keepdim=True)
    below = torch.where(scores < top, scores.double(), -math.inf).amax(dim=1)
    return scores.shape[1] * torch.exp(-sharpness * (top[:, 0] - below))
