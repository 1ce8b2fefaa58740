"""Claims 1 to 4 and 6: the construction, built and run in whole numbers.

Enters: a bench. Leaves: outcomes. Every parameter count is that of a network which was built, and
which was asked for every label that it should know.
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
from orbitlens_papers.memorization.network import (
    Network,
    extractor,
    lookup,
    run_exact,
    run_rounded,
)
from orbitlens_papers.memorization.sequences import (
    LABEL_BITS,
    N_LABELS,
    Case,
    Kind,
    Problem,
    build,
)

LENGTH = 8
MANY = 4096  # labels; networks for so many are built for two seeds only
MIDDLE = {"slope": 0.575, "per log": 0.45, "tokens": 0.575, "bits": 0.625}  # of allowed ranges
DTYPES = {"float32": torch.float32, "float64": torch.float64}
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Solved:
    """A network for a case, and how many of its labels it gets wrong."""

    case: Case
    problem: Problem
    network: Network
    n_wrong: int

    def row(self) -> Row:
        """Return it as plain data."""
        n_labels, bits = len(self.problem.labels), self.network.largest_bits
        return {
            "kind": self.case.kind.value,
            "n_sequences": self.case.n_sequences,
            "length": self.case.length,
            "labels": n_labels,
            "wrong": self.n_wrong,
            "parameters": self.network.n_parameters,
            "depth": self.network.depth,
            "bits": bits,
            "total_bits": self.network.total_bits,
            "bound": n_labels * math.log2(N_LABELS) / bits,  # fewer weights of that length cannot
            "tries": self.problem.tries,
            "shared": self.problem.n_shared,
        }


def solve(case: Case) -> Row:
    """Build the network of a case and ask it for every label."""
    problem = build(case)
    network = extractor(problem.first_labels, id_bits=problem.id_bits, label_bits=LABEL_BITS)
    return _solved(case, problem, network).row()


def solve_plainly(case: Case) -> Row:
    """The same with the reference, a staircase of two units an id."""
    problem = build(case)
    return _solved(case, problem, lookup(problem.first_labels)).row()


def _solved(case: Case, problem: Problem, network: Network) -> Solved:
    labels = run_exact(network, problem.ids)
    n_wrong = sum(a != b for a, b in zip(labels, problem.labels, strict=True))
    return Solved(case=case, problem=problem, network=network, n_wrong=n_wrong)


def solve_rounded(case: Case) -> Row:
    """The same network in floats: the share of wrong labels by type."""
    problem = build(case)
    network = extractor(problem.first_labels, id_bits=problem.id_bits, label_bits=LABEL_BITS)
    row: Row = {"n_sequences": case.n_sequences, "bits": network.largest_bits}
    for name, dtype in DTYPES.items():
        answers = run_rounded(network, problem.ids, dtype)
        labels = torch.tensor(problem.labels, dtype=dtype)
        row[name] = float((answers != labels).double().mean())  # what is no number is wrong too
    return row


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the least-squares slope of log y over log x.

    >>> round(slope([1.0, 4.0, 16.0], [3.0, 6.0, 12.0]), 9)
    0.5
    """
    u, v = ([math.log(value) for value in values] for values in (x, y))
    centre, height = sum(u) / len(u), sum(v) / len(v)
    top = sum((a - centre) * (b - height) for a, b in zip(u, v, strict=True))
    return top / sum((a - centre) ** 2 for a in u)


def _column(rows: Sequence[Row], field: str) -> list[float]:
    return [float(row[field]) for row in rows]


def numbers(bench: Bench) -> tuple[int, ...]:
    """Return how many sequences to memorize."""
    return bench.pick(
        (16, 64, 256), (16, 64, 256, 1024, 4096), (16, 64, 256, 1024, 4096, 16384, 65536)
    )


def _cases(bench: Bench, kind: Kind, sizes: Sequence[tuple[int, int]]) -> list[Case]:
    return [
        Case(
            kind=kind,
            n_sequences=n_sequences,
            length=length,
            number=bench.generator(f"{n_sequences} of {length}", seed).initial_seed(),
        )
        for place, seed in enumerate(bench.seeds)
        for n_sequences, length in sizes
        if place < 2 or n_sequences * (length if kind is Kind.TOKEN else 1) < MANY
    ]


def _by_number(bench: Bench) -> list[Row]:
    """Return the construction for every N and seed."""
    cases = _cases(bench, Kind.SEQUENCE, [(n, LENGTH) for n in numbers(bench)])
    # Long ones first: the last of them would otherwise keep one core waiting for the other.
    cases.sort(key=lambda case: -case.n_sequences)
    return bench.once("by number", lambda: bench.map(solve, cases))


def _plain(bench: Bench) -> list[Row]:
    """Return the reference for every N, one seed: its count does not depend on the draw."""
    sizes = [(n, LENGTH) for n in numbers(bench)]
    cases = _cases(bench, Kind.SEQUENCE, sizes)[: len(sizes)]
    return bench.once("plain", lambda: bench.map(solve_plainly, cases))


# --- claim 1: it is right --------------------------------------------------------------------


def recalls(bench: Bench) -> Outcome:
    """1a: wrong labels at any N; control: attention that sees the last token alone."""
    rows = _by_number(bench)
    blind = bench.map(solve, _cases(bench, Kind.UNATTENDED, [(max(numbers(bench)), LENGTH)]))
    return Outcome(
        result=estimate.largest(_column(rows, "wrong"), of="networks"),
        control=estimate.smallest(_column(blind, "wrong"), of="networks"),
        data={"rows": rows, "blind": blind},
    )


# --- claim 2: with few parameters ------------------------------------------------------------


def parameter_slope(bench: Bench) -> Outcome:
    """2a: distance of the slope of P from the allowed range's middle; control: the staircase."""
    return Outcome(
        result=_off(_by_number(bench), MIDDLE["slope"]),
        control=_off(_plain(bench), MIDDLE["slope"]),
        data={"rows": _by_number(bench), "plain": _plain(bench), "note": _counts(bench)}
        | _slopes(bench),
    )


def _counts(bench: Bench) -> str:
    """Return the counts in words, also without what a hand count leaves out."""
    counts = {row["n_sequences"]: row["parameters"] for row in _by_number(bench)}
    full = ", ".join(f"{counts[n]:,} at N = {n:,}" for n in sorted(counts))
    less = ", ".join(f"{counts[n] - 7 * math.isqrt(n):,}" for n in sorted(counts))
    return (
        f"P is {full}. Seven scalars a group clear registers and take a step back out; a hand "
        f"count without them gives {less}"
    )


def slope_but_logs(bench: Bench) -> Outcome:
    """2b: the same for P / log2 N."""
    return Outcome(
        result=_off(_by_number(bench), MIDDLE["per log"], log=True),
        control=_off(_plain(bench), MIDDLE["per log"], log=True),
        data=_slopes(bench),
    )


def plain_slope(bench: Bench) -> Outcome:
    """2c: distance of the staircase's slope from one; control: the construction."""
    return Outcome(result=_off(_plain(bench), 1.0), control=_off(_by_number(bench), 1.0))


def _slopes(bench: Bench) -> Row:
    own, plain = _by_number(bench), _plain(bench)
    return {
        "slope": _slope_of(own),
        "slope_per_log": _slope_of(own, log=True),
        "plain_slope": _slope_of(plain),
        "plain_slope_per_log": _slope_of(plain, log=True),
    }


def _slope_of(rows: Sequence[Row], *, log: bool = False) -> float:
    """Return the slope of P, or of P / log2 N, over N; P does not depend on the seed."""
    logs = [math.log2(row["n_sequences"]) if log else 1.0 for row in rows]
    return slope(
        _column(rows, "n_sequences"),
        [row["parameters"] / divisor for row, divisor in zip(rows, logs, strict=True)],
    )


def _off(rows: Sequence[Row], middle: float, *, log: bool = False) -> Estimate:
    distance = abs(_slope_of(rows, log=log) - middle)
    return estimate.largest([distance], of="slopes over all N and seeds")


LOWER = (
    "a bound from below speaks of every network there could be, and a run shows one; the bound by "
    "counting, labels times their bits over the bits of a weight, is printed beside P"
)


def bound_from_below(bench: Bench) -> Outcome:
    """2d: not testable; what counting alone says, beside P."""
    return Outcome(obstacle=LOWER, data={"rows": _by_number(bench)})


# --- claim 3: whatever the length ------------------------------------------------------------


def _lengths(bench: Bench) -> tuple[int, ...]:
    return bench.pick((4, 16, 64), (4, 16, 64, 256), (4, 16, 64, 256))


def _by_length(bench: Bench, kind: Kind) -> list[Row]:
    n = {Kind.SEQUENCE: bench.pick(64, 1024, 4096)}.get(kind, bench.pick(8, 16, 64))
    cases = _cases(bench, kind, [(n, length) for length in _lengths(bench)])
    return bench.once(f"by length {kind}", lambda: bench.map(solve, cases))


def _ratio(rows: Sequence[Row]) -> float:
    counts = _column(rows, "parameters")
    return float(max(counts) / min(counts))


def any_length(bench: Bench) -> Outcome:
    """3a: largest P over smallest, over lengths; control: one label a token."""
    own, each = (_by_length(bench, kind) for kind in (Kind.SEQUENCE, Kind.TOKEN))
    return Outcome(
        result=estimate.largest([_ratio(own)], of="ratios over all lengths and seeds"),
        control=estimate.smallest([_ratio(each)], of="ratios over all lengths and seeds"),
        data={"rows": own, "each": each},
    )


def token_slope(bench: Bench) -> Outcome:
    """3b: distance of the slope of P over n, one label a token; control: one a sequence."""
    slopes = []
    for kind in (Kind.TOKEN, Kind.SEQUENCE):
        rows = _by_length(bench, kind)
        slopes.append(slope(_column(rows, "length"), _column(rows, "parameters")))
    own, control = (
        estimate.largest([abs(value - MIDDLE["tokens"])], of="slopes over all n and seeds")
        for value in slopes
    )
    return Outcome(
        result=own, control=control, data={"slope": slopes[0], "sequence_slope": slopes[1]}
    )


def recalls_tokens(bench: Bench) -> Outcome:
    """3c: wrong labels, one a token; control: ids of the context alone."""
    rows = [*_by_length(bench, Kind.TOKEN), *_by_length(bench, Kind.SEQUENCE)]
    nameless = _by_length(bench, Kind.UNNAMED)
    return Outcome(
        result=estimate.largest(_column(rows, "wrong"), of="networks"),
        control=estimate.smallest(_column(nameless, "wrong"), of="networks"),
    )


# --- claim 4: at a price ---------------------------------------------------------------------


def weight_bits(bench: Bench) -> Outcome:
    """4a: distance of the slope of the longest weight's bits over N; control: the staircase."""
    bits = []
    for rows in (_by_number(bench), _plain(bench)):
        bits.append(slope(_column(rows, "n_sequences"), _column(rows, "bits")))
    own, control = (
        estimate.largest([abs(value - MIDDLE["bits"])], of="slopes over all N and seeds")
        for value in bits
    )
    return Outcome(result=own, control=control, data={"slope": bits[0], "plain_slope": bits[1]})


def floats_break_it(bench: Bench) -> Outcome:
    """4b: share of wrong labels in float64 at N = 64; control: N = 4, which fits."""
    cases = _cases(bench, Kind.SEQUENCE, [(n, LENGTH) for n in (4, *numbers(bench))])
    rows = bench.map(solve_rounded, cases)
    by_n = {n: [row["float64"] for row in rows if row["n_sequences"] == n] for n in (4, 64)}
    return Outcome(
        result=estimate.smallest(by_n[64], of="networks"),
        control=estimate.largest(by_n[4], of="networks"),
        data={"rows": rows},
    )


# --- claim 6: order --------------------------------------------------------------------------


def places_tell_apart(bench: Bench) -> Outcome:
    """6a: wrong labels of permuted sequences, values by token and place; control: by token."""
    sizes = [(bench.pick(64, 256, 4096), LENGTH)]
    placed, plain = (
        bench.map(solve, _cases(bench, kind, sizes)) for kind in (Kind.PLACED, Kind.PERMUTED)
    )
    return Outcome(
        result=estimate.largest(_column(placed, "wrong"), of="networks"),
        control=estimate.smallest(_column(plain, "wrong"), of="networks"),
        data={"placed": placed, "plain": plain, "example": _example(bench)},
    )


def _example(bench: Bench) -> Row:
    """Return the ids of 12 sequences, three families of four orders, with places and without."""
    seed = bench.seeds[0]
    number = bench.generator("example", seed).initial_seed()
    return {
        kind.value: build(Case(kind=kind, n_sequences=12, length=LENGTH, number=number)).ids
        for kind in (Kind.PLACED, Kind.PERMUTED)
    }
