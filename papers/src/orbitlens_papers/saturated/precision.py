"""Claim 5: how many bits the output of a saturated head takes, in exact fractions.

Enters: a bench. Leaves: outcomes. A mean of whole numbers over k places is a fraction with a
denominator of at most k: log2 n bits and a constant. A second layer over such fractions is where
that ends, unless values are rounded, as floating-point numbers are.
"""

import math
from collections.abc import Sequence
from fractions import Fraction

import torch

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

LARGEST = 5  # of the values


def saturated_mean(scores: Sequence[int], values: Sequence[int]) -> Fraction:
    """Return the output of a saturated head, exactly.

    >>> saturated_mean([2, 1, 2], [1, 9, 0])
    Fraction(1, 2)
    """
    top = max(scores)
    best = [value for score, value in zip(scores, values, strict=True) if score == top]
    return Fraction(sum(best), len(best))


def doubling_mean(scores: Sequence[int], values: Sequence[int]) -> Fraction:
    """Return the output of a soft head with weights of 2 to the power of the score, exactly.

    >>> doubling_mean([0, 1], [1, 0])
    Fraction(1, 3)
    """
    weights = [1 << score for score in scores]
    total = sum(w * value for w, value in zip(weights, values, strict=True))
    return Fraction(total, sum(weights))


def harmonic_mean_of_places(length: int) -> Fraction:
    """Return the output of two saturated layers on 1 0 0 ... 0, with exact fractions between.

    The first layer averages over all places so far, 1/i at place i; the second over all places.
    """
    return sum((Fraction(1, place) for place in range(1, length + 1)), Fraction(0)) / length


def bits_of(value: Fraction) -> int:
    """Return the bits of the larger of numerator and denominator.

    >>> bits_of(Fraction(-3, 8))
    4
    """
    return max(abs(value.numerator), value.denominator).bit_length()


def _draws(bench: Bench, length: int) -> list[tuple[list[int], list[int]]]:
    """Return scores of a few levels and values, so that many places tie."""
    drawn = []
    for seed in bench.seeds:
        generator = bench.generator(f"fractions {length}", seed)
        for _ in range(bench.pick(5, 40, 200)):
            scores = torch.randint(0, 3, (length,), generator=generator)
            values = torch.randint(-LARGEST, LARGEST + 1, (length,), generator=generator)
            drawn.append((scores.tolist(), values.tolist()))
        drawn.append(([0] * length, [LARGEST] * (length - 1) + [LARGEST - 1]))
    return drawn


def few_bits(bench: Bench) -> Outcome:
    """5a: bits of the output less log2(n max|v|), largest over lengths.

    Control: a soft head with weights of 2 to the score, and places for scores.
    """
    lengths = bench.pick((16, 64, 256), (16, 64, 256, 1024, 4096), (16, 64, 256, 1024, 4096, 16384))
    bits: dict[str, list[int]] = {"saturated": [], "doubling": [], "two layers": []}
    for number, length in enumerate(lengths):
        draws = _draws(bench, length)
        bits["saturated"].append(max(bits_of(saturated_mean(*draw)) for draw in draws))
        bits["doubling"].append(bits_of(doubling_mean(range(length), draws[0][1])))
        bits["two layers"].append(bits_of(harmonic_mean_of_places(length)))
        bench.step((number + 1) / len(lengths))
    over = {name: excess(lengths, counts) for name, counts in bits.items()}
    return Outcome(
        result=estimate.largest(over["saturated"], of="lengths"),
        control=estimate.smallest(over["doubling"][1:], of="lengths"),
        data={"lengths": list(lengths), "bits": bits},
    )


def excess(lengths: Sequence[int], bits: Sequence[int]) -> list[float]:
    """Return bits beyond log2(n max|v|), by length."""
    return [count - math.log2(n * LARGEST) for n, count in zip(lengths, bits, strict=True)]


def second_layer_needs_more(bench: Bench) -> Outcome:
    """5b: bits a place of two layers with exact fractions between; control: one layer."""
    length = bench.pick(256, 1024, 4096)
    two = bits_of(harmonic_mean_of_places(length)) / length
    one = max(bits_of(saturated_mean(*draw)) for draw in _draws(bench, length)[:20]) / length
    return Outcome(
        result=estimate.largest([two], of="lengths"),
        control=estimate.largest([one], of="lengths"),
        data={"length": length},
    )
