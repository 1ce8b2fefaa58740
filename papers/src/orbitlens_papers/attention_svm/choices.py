"""Claims 3, 4 and 6: that attention saturates, which tokens it selects, and what order changes.

Enters: a bench. Leaves: outcomes. None of these needs a solver.
"""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from orbitlens_papers import estimate
from orbitlens_papers.attention_svm.margin import Norm, missing, solve
from orbitlens_papers.attention_svm.problems import (
    Descent,
    Path,
    Problems,
    Sizes,
    descend,
    draw,
    saturation,
    selected,
)
from orbitlens_papers.attention_svm.runs import (
    KINDS,
    LOOKS,
    STEPS,
    by_seed,
    draw_all,
    runs_of,
    start_all,
)
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

WIDTHS = (4, 6, 10, 20)


# --- claim 3: saturation ---------------------------------------------------------------------


def saturates(bench: Bench) -> Outcome:
    """3a: the largest weight of softmax after descent, both kinds; control: before it."""
    runs = runs_of(bench)
    ends, starts = [], []
    for kind in KINDS:
        path = runs.paths[kind]
        ends.append(saturation(runs.problems, path.end))
        starts.append(saturation(runs.problems, path.matrices[0]))
    return Outcome(
        result=estimate.mean(by_seed(bench, torch.stack(ends).amin(dim=0))),
        control=estimate.mean(by_seed(bench, torch.stack(starts).amax(dim=0))),
        data={
            "steps": list(runs.paths["plain"].steps),
            "curves": {kind: _saturations(runs.problems, runs.paths[kind]) for kind in KINDS},
            "picture": _picture(bench),
        },
    )


def _saturations(problems: Problems, path: Path) -> list[float]:
    return [round(float(saturation(problems, w).mean()), 6) for w in path.matrices]


def _picture(bench: Bench) -> dict[str, Any]:
    """Return the smallest problem that can be drawn: two samples of three tokens in the plane."""
    seed = bench.seeds[0]
    problems = draw(1, bench.generator("picture", seed), Sizes(samples=2, tokens=3, width=2))
    data: dict[str, Any] = {
        "tokens": problems.tokens[0].tolist(),
        "optimal": problems.optimal()[0].tolist(),
        "paths": {},
        "rays": {},
        "chosen": {},
    }
    for kind, norm in zip(KINDS, Norm, strict=True):
        factored = kind == "factored"
        beginning = start_all(bench, f"picture {kind}", problems, factored=factored)
        path = descend(problems, beginning, Descent(steps=STEPS, factored=factored), LOOKS)
        chosen = selected(problems, path.end)[0]
        data["chosen"][kind] = chosen.tolist()
        data["paths"][kind] = [_turned(problems, w) for w in path.matrices]
        if not missing():
            w = solve(problems.tokens[0], problems.queries[0], chosen, norm=norm).w
            data["rays"][kind] = _turned(problems, torch.from_numpy(w)[None])
    return data


def _turned(problems: Problems, w: Tensor) -> list[list[float]]:
    """Return W z for every sample: tokens are scored by their inner product with it."""
    turned: list[list[float]] = (problems.queries @ w.transpose(1, 2))[0].tolist()
    return turned


# --- claim 4: which tokens -------------------------------------------------------------------


def picks_best(bench: Bench) -> Outcome:
    """4a: share of samples that select their best token; control: judged by redrawn labels."""
    runs = runs_of(bench)
    best, other = runs.problems.optimal(), runs.problems.optimal(runs.redrawn)
    chosen = {kind: selected(runs.problems, runs.paths[kind].end) for kind in KINDS}
    right = {kind: int((tokens == best).sum()) for kind, tokens in chosen.items()}
    return Outcome(
        result=estimate.share(right["plain"], best.numel(), of="samples"),
        control=estimate.share(int((chosen["plain"] == other).sum()), best.numel(), of="samples"),
        data={"right": right, "samples": best.numel()},
    )


def descend_job(job: tuple[Problems, list[Tensor], Descent]) -> tuple[int, int]:
    """Return how many samples select their best token after descent, and how many there are."""
    problems, beginning, how = job
    is_best = selected(problems, descend(problems, beginning, how).end) == problems.optimal()
    return int(is_best.sum()), is_best.numel()


def wider_is_better(bench: Bench) -> Outcome:
    """4b: the largest drop of that share from one width to the next, in standard errors.

    Control: the widths in the opposite order.
    """
    jobs = []
    for kind in KINDS:
        for width in WIDTHS:
            problems = draw_all(bench, f"width {width}", Sizes(width=width))
            factored = kind == "factored"
            name = f"start {kind} {width}"
            beginning = start_all(bench, name, problems, factored=factored)
            how = Descent(steps=bench.pick(300, STEPS, STEPS), factored=factored)
            jobs.append((problems, beginning, how))
    results = bench.map(descend_job, jobs)
    counts = {kind: results[k * len(WIDTHS) :][: len(WIDTHS)] for k, kind in enumerate(KINDS)}
    rows = counts["plain"]
    return Outcome(
        result=estimate.largest(drops(rows), of="steps in width"),
        control=estimate.largest(drops(rows[::-1]), of="steps in width"),
        data={
            "widths": list(WIDTHS),
            "counts": {k: [list(c) for c in v] for k, v in counts.items()},
        },
    )


def drops(counts: list[tuple[int, int]]) -> list[float]:
    """Return each share less the next, over the standard error of the difference.

    >>> [round(x, 2) for x in drops([(50, 100), (50, 100), (40, 100)])]
    [0.0, 1.43]
    """
    falls = []
    for (a, n), (b, m) in pairwise(counts):
        p, q = a / n, b / m
        error = math.sqrt(p * (1 - p) / n + q * (1 - q) / m)
        falls.append((p - q) / error if error else 0.0)
    return falls


# --- claim 6: order --------------------------------------------------------------------------


def order_is_nothing(bench: Bench) -> Outcome:
    """6a: by how much W moves when tokens are permuted within samples, relative; largest.

    Control: one token of each sample goes to the next sample. K Qᵀ is reported beside it: where the
    penalty holds its length, steps swing to and fro and let rounding grow.
    """
    runs = runs_of(bench)
    generator = bench.generator("permutations", bench.seeds[0])
    shape = runs.problems.tokens.shape
    order = torch.rand(shape[:3], generator=generator).argsort(dim=-1)
    permuted = runs.problems.tokens.gather(2, order[..., None].expand(shape))
    exchanged = runs.problems.tokens.clone()
    exchanged[:, :, 0] = exchanged[:, :, 0].roll(1, dims=1)
    return Outcome(
        result=estimate.largest(_moved(bench, "plain", permuted).tolist(), of="runs"),
        control=estimate.smallest(_moved(bench, "plain", exchanged).tolist(), of="runs"),
        data={"factored": float(_moved(bench, "factored", permuted).max())},
    )


def _moved(bench: Bench, kind: str, tokens: Tensor) -> Tensor:
    runs = runs_of(bench)
    problems = replace(runs.problems, tokens=tokens)
    factored = kind == "factored"
    beginning = start_all(bench, f"start {kind}", problems, factored=factored)
    steps = bench.pick(300, STEPS, STEPS)  # one of LOOKS, or the last
    path = runs.paths[kind]
    before = path.matrices[path.steps.index(steps)]
    after = descend(problems, beginning, Descent(steps=steps, factored=factored)).end
    return (after - before).flatten(1).norm(dim=1) / before.flatten(1).norm(dim=1)
