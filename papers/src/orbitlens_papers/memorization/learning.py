"""Claim 5: how many parameters a trained transformer needs, by a search over its width.

Enters: a bench. Leaves: outcomes. A width is enough if some step of training, on the whole set at
once, gets 99 % of the labels right. Widths are doubled until one is enough, then halved between:
from below, since at one rate of learning for all a model can also be too wide to settle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from orbitlens.lab.fitting import fit
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.memorization.block import CountBlock
from orbitlens_papers.memorization.exact import slope
from orbitlens_papers.memorization.network import extractor
from orbitlens_papers.memorization.sequences import (
    LABEL_BITS,
    N_LABELS,
    Case,
    Kind,
    build,
)
from orbitlens_papers.trained import judged

VOCABULARY = 128
ENOUGH = 0.99  # of the labels
LOOK_EVERY = 25  # steps
RATE = 1e-2
WIDTHS = (4, 5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 34, 40, 48, 57, 68, 81, 96)
STRIDE = 4  # widths of the list that make one twice as wide
LENGTHS = (4, 16, 64)
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Search:
    """One bisection: what to memorize, and how long to try."""

    each: bool  # one label a token, else one a sequence
    n_sequences: int
    length: int
    steps: int
    widest: int
    number: int  # of the generator


@dataclass(frozen=True, kw_only=True)
class Lesson:
    """Rows of a training set: a token in a context, and its label."""

    counts: Tensor
    tokens: Tensor
    labels: Tensor


def lesson(search: Search) -> Lesson:
    """Return sequences of different tokens, an end token behind each, and random labels.

    With one label a sequence it is read at the end token.
    """
    generator = torch.Generator().manual_seed(search.number)
    draws = torch.rand(search.n_sequences, VOCABULARY, generator=generator)
    tokens = draws.argsort(dim=1)[:, : search.length]
    counts = torch.zeros(search.n_sequences, VOCABULARY + 1)
    counts.scatter_(1, tokens, 1.0)
    counts[:, VOCABULARY] = 1.0
    if search.each:
        counts = counts.repeat_interleave(search.length, dim=0)
        asked = tokens.flatten()
    else:
        asked = torch.full((search.n_sequences,), VOCABULARY)
    labels = torch.randint(N_LABELS, (len(asked),), generator=generator)
    return Lesson(counts=counts, tokens=asked, labels=labels)


def best_accuracy(given: Lesson, width: int, *, steps: int, number: int) -> tuple[float, int]:
    """Train, and return the best share of right labels, and the parameters it took."""
    generator = torch.Generator().manual_seed(number + width)
    model = CountBlock(width, VOCABULARY + 1, N_LABELS, generator=generator)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, foreach=True)
    best, log_counts = 0.0, given.counts.log()

    def loss_at(step: int) -> Tensor:
        nonlocal best
        logits = model(log_counts, given.tokens)
        if (step + 1) % LOOK_EVERY == 0 or step + 1 == steps:
            best = max(best, float((logits.argmax(dim=-1) == given.labels).double().mean()))
        return torch.nn.functional.cross_entropy(logits, given.labels)

    fit(
        loss_at,
        optimizer,
        steps=steps,
        schedule=torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        after=lambda step: best >= ENOUGH,
    )
    return best, model.n_parameters


def fewest(search: Search) -> Row:
    """Return the smallest width that is enough, its parameters, and every width that was tried."""
    given = lesson(search)
    tried: dict[int, tuple[float, int]] = {}

    def enough(width: int) -> bool:
        tried[width] = best_accuracy(given, width, steps=search.steps, number=search.number)
        return tried[width][0] >= ENOUGH

    widths = [width for width in WIDTHS if width <= search.widest]
    low, high = -1, 0
    reached = enough(widths[high])
    while not reached and high < len(widths) - 1:  # about twice as wide each time
        low, high = high, min(high + STRIDE, len(widths) - 1)
        reached = enough(widths[high])
    while reached and high - low > 1:
        middle = (low + high) // 2
        if enough(widths[middle]):
            high = middle
        else:
            low = middle
    width = widths[high]
    return {
        "each": search.each,
        "n_sequences": search.n_sequences,
        "length": search.length,
        "labels": len(given.labels),
        "reached": reached,
        "width": width,
        "parameters": tried[width][1],
        "tried": {str(w): round(score, 4) for w, (score, _) in sorted(tried.items())},
    }


# --- the searches of all claims --------------------------------------------------------------


def _sizes(bench: Bench) -> list[tuple[bool, int, int]]:
    """Return label kind, sequences and length of every search."""
    n, few, length = bench.pick((16, 4, 4), (256, 32, 16), (1024, 128, 16))
    lengths = bench.pick(LENGTHS[:2], LENGTHS, LENGTHS)
    others = bench.pick((8,), (64, 128, 512, 1024), (64, 128, 256, 512, 2048, 4096, 8192))
    sizes = [(False, n, x) for x in lengths] + [(True, few, x) for x in lengths]
    return sizes + [(False, m, length) for m in others]


def searches(bench: Bench) -> list[list[Row]]:
    """Return for each seed what every search found."""

    def make() -> list[list[Row]]:
        sizes = _sizes(bench)
        seeds = list(bench.seeds)[: bench.pick(1, 4, 8)]
        todo = [
            Search(
                each=each,
                n_sequences=n,
                length=length,
                steps=bench.pick(4, 800, 5000),
                widest=bench.pick(4, 48, 96),
                number=bench.generator(f"train {each} {n} {length}", seed).initial_seed(),
            )
            for seed in seeds
            for each, n, length in sizes
        ]
        rows = bench.map(fewest, todo)
        return [rows[k : k + len(sizes)] for k in range(0, len(rows), len(sizes))]

    return bench.once("searches", make)


def _by_length(rows: Sequence[Row], *, each: bool) -> list[int]:
    """Return the fewest parameters by length, shortest first; N as in the first such search."""
    chosen = [row for row in rows if row["each"] is each]
    chosen = [row for row in chosen if row["n_sequences"] == chosen[0]["n_sequences"]]
    return [row["parameters"] for row in sorted(chosen, key=lambda row: row["length"])]


def _too_narrow(by_seed: Sequence[Sequence[Row]]) -> str:
    """Say which searches no width was enough for; empty where there is none."""
    lost = [row for rows in by_seed for row in rows if not row["reached"]]
    if not lost:
        return ""
    names = sorted({f"{row['labels']} labels at {row['length']} tokens" for row in lost})
    return f"the widest model did not learn {', '.join(names)}"


def _ratios(by_seed: Sequence[Sequence[Row]], *, each: bool, ends: bool) -> list[float]:
    """Return for each seed the last count over the first, or the largest over the smallest."""
    counts = [_by_length(rows, each=each) for rows in by_seed]
    return [c[-1] / c[0] if ends else max(c) / min(c) for c in counts]


def _compared(bench: Bench, *, each: bool, ends: bool) -> Outcome:
    by_seed = searches(bench)
    data = {"searches": by_seed}
    narrow = _too_narrow(by_seed)
    if narrow:
        return judged(bench, Outcome(obstacle=narrow, data=data))
    return judged(
        bench,
        Outcome(
            result=estimate.mean(_ratios(by_seed, each=each, ends=ends)),
            control=estimate.mean(_ratios(by_seed, each=not each, ends=ends)),
            data=data,
        ),
    )


def any_length(bench: Bench) -> Outcome:
    """5a: largest over smallest count over lengths; control: one label a token."""
    return _compared(bench, each=False, ends=False)


def tokens_need_more(bench: Bench) -> Outcome:
    """5b: the count at the longest over that at the shortest; control: one label a sequence."""
    return _compared(bench, each=True, ends=True)


def labels_need_more(bench: Bench) -> Outcome:
    """5c: slope of the fewest parameters over N; control: the construction."""
    by_seed = searches(bench)
    narrow = _too_narrow(by_seed)
    if narrow:
        return judged(bench, Outcome(obstacle=narrow, data={"searches": by_seed}))
    lines = [_by_number(rows) for rows in by_seed]
    slopes = [slope([n for n, _ in line], [p for _, p in line]) for line in lines]
    sizes = [n for n, _ in lines[0]]
    built = slope(sizes, [float(_constructed(round(n))) for n in sizes])
    return judged(
        bench,
        Outcome(
            result=estimate.mean(slopes),
            control=estimate.largest([built], of="slopes of a construction"),
            data={
                "lines": [[list(pair) for pair in line] for line in lines],
                "slopes": slopes,
                "constructed": built,
            },
        ),
    )


def _by_number(rows: Sequence[Row]) -> list[tuple[float, float]]:
    """Return N with the fewest parameters, at the length that several N were tried at."""
    length = rows[-1]["length"]
    chosen = [row for row in rows if not row["each"] and row["length"] == length]
    return sorted((float(row["n_sequences"]), float(row["parameters"])) for row in chosen)


def _constructed(n_sequences: int) -> int:
    problem = build(Case(kind=Kind.SEQUENCE, n_sequences=n_sequences, length=8, number=0))
    labels = problem.first_labels
    return extractor(labels, id_bits=problem.id_bits, label_bits=LABEL_BITS).n_parameters
