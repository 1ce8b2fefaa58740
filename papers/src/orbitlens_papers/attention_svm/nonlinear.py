"""Claim 7: descent on W under a fixed nonlinear head, and the SVM that is to say where it goes.

Enters: a bench. Leaves: outcomes. The head is f = sum of relu(Vᵀ a) of the attended token a, with a
fixed random V, in the setting of the code released with arXiv 2308.16898 (multi_token_converge: 3
samples of 4 tokens, widths 4 to 10, 2,000 normalised steps of 0.1). Such a head may like a mixture
of tokens better than any one of them, so that attention stays on several: the SVM then asks for
equal scores among those, and for a margin of one above all others.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens_papers import estimate
from orbitlens_papers.attention_svm import margin
from orbitlens_papers.attention_svm.problems import (
    RATE,
    Matrices,
    Problems,
    Sizes,
    cosine,
    draw,
    draw_labels,
    scores_of,
    start,
)
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.trained import judged

WIDTHS = (4, 6, 8, 10)
SAMPLES, TOKENS, STEPS = 3, 4, 2000
SHARED, IGNORED = 1e-3, 1e-6  # weights above the one stay, below the other they have gone
EPS = torch.finfo(torch.float64).eps  # added to the norm that a step is divided by

Heads = Float[Tensor, "problem d_model hidden"]


@dataclass(frozen=True, kw_only=True)
class Task:
    """Problems of one width, with a nonlinear head each."""

    problems: Problems
    heads: Heads

    def worth(self, tokens: Float[Tensor, "*some d_model"]) -> Float[Tensor, "*some"]:
        """Return what the head makes of vectors, problem by problem: sum of relu(Vᵀ a)."""
        worth: Tensor = torch.einsum("p...d,pdh->p...h", tokens, self.heads).relu().sum(dim=-1)
        return worth

    def best(self, labels: Float[Tensor, "problem sample"]) -> Int[Tensor, "problem sample"]:
        """Return the token that each sample would best select alone, by the head's own score."""
        return (labels[..., None] * self.worth(self.problems.tokens)).argmax(dim=-1)


def draw_task(n: int, width: int, generator: torch.Generator) -> Task:
    """Return random problems; in each, some label is -1."""
    problems = draw(n, generator, Sizes(samples=SAMPLES, tokens=TOKENS, width=width))
    # A head that is never below zero has nothing to push down where all labels are +1.
    labels = problems.labels
    while (same := (labels > 0).all(dim=1)).any():
        labels = torch.where(same[:, None], draw_labels((n, SAMPLES), generator), labels)
    heads = torch.randn(n, width, width, generator=generator, dtype=torch.float64)
    return Task(
        problems=Problems(
            tokens=problems.tokens, queries=problems.queries, labels=labels, head=problems.head
        ),
        heads=heads / heads.flatten(1).norm(dim=1)[:, None, None],
    )


def gradient(task: Task, w: Matrices) -> Matrices:
    """Return the gradient by W of the mean logistic loss of Y f.

    As with a linear head whose weights are the slope of the head at the attended token; values are
    counted from that of the most attended token, which keeps all digits.
    """
    tokens, labels = task.problems.tokens, task.problems.labels[..., None]
    scores = scores_of(task.problems, w)
    weights = scores.softmax(dim=-1)
    attended = torch.einsum("pst,pstd->psd", weights, tokens)
    active = (torch.einsum("psd,pdh->psh", attended, task.heads) > 0).double()
    slopes = torch.einsum("psh,pdh->psd", active, task.heads)
    values = torch.einsum("pstd,psd->pst", tokens, slopes)
    above = values - values.gather(-1, scores.argmax(dim=-1, keepdim=True))
    mean = (above * weights).sum(dim=-1, keepdim=True)
    outer = -labels * torch.sigmoid(-labels * task.worth(attended)[..., None]) / labels.shape[1]
    by_token = torch.einsum("pst,pstd->psd", outer * weights * (above - mean), tokens)
    return by_token.transpose(1, 2) @ task.problems.queries


def descend(task: Task, beginning: Matrices, steps: int) -> Matrices:
    """Return W after normalised steps, all problems side by side."""
    w = beginning.clone()
    for _ in range(steps):
        slope = gradient(task, w)
        # With EPS in the divisor steps end where the gradient is rounding, as in the paper's code.
        w -= RATE * slope / (slope.flatten(1).norm(dim=1)[:, None, None] + EPS)
    return w


# --- solutions -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """A problem to solve, and the tokens to be kept on top, by name."""

    tokens: Float[Tensor, "sample tokens d_model"]
    queries: Float[Tensor, "sample d_model"]
    kept: Mapping[str, Bool[Tensor, "sample tokens"]]


Solved = dict[str, Float[Tensor, "d_model d_model"] | None]


def solve_chosen(chosen: Chosen) -> Solved:
    """Return the least separating matrix by name; None where there is none."""
    return {
        name: margin.solve_sets(chosen.tokens, chosen.queries, kept)
        for name, kept in chosen.kept.items()
    }


@dataclass(frozen=True, kw_only=True)
class Ends:
    """Where descent ended in the problems of one width, of those that ended clearly."""

    width: int
    drawn: int
    seeds: list[int]  # of each kept problem
    cosines: Mapping[str, list[float]]  # with the SVM of shared, single and redrawn tokens
    mixed: list[bool]  # whether some sample shares its attention
    best: list[int]  # samples on one token that are on the best one by the head's score
    other: list[int]  # the same, judged by redrawn labels
    alone: list[int]  # samples on one token


def clear(weights: Float[Tensor, "problem sample tokens"]) -> Bool[Tensor, " problem"]:
    """Return which problems ended clearly: no weight between both bounds, and some gone."""
    between = (weights > IGNORED) & (weights <= SHARED)
    return ~between.flatten(1).any(dim=1) & (weights <= IGNORED).flatten(1).any(dim=1)


def _one_hot(chosen: Int[Tensor, "problem sample"]) -> Bool[Tensor, "problem sample tokens"]:
    return functional.one_hot(chosen, TOKENS).bool()


def ends_of(bench: Bench) -> list[Ends]:
    """Return the ends of descent for every width, made once."""
    return bench.once("nonlinear", lambda: [_ends(bench, width) for width in WIDTHS])


def _ends(bench: Bench, width: int) -> Ends:
    n = bench.pick(5, 50, 400)
    parts = [
        draw_task(n, width, bench.generator(f"nonlinear {width}", seed)) for seed in bench.seeds
    ]
    task = Task(
        problems=Problems(
            **{
                name: torch.cat([getattr(part.problems, name) for part in parts])
                for name in ("tokens", "queries", "labels", "head")
            }
        ),
        heads=torch.cat([part.heads for part in parts]),
    )
    generator = bench.generator(f"nonlinear start {width}", bench.seeds[0])
    (beginning,) = start(task.problems, generator, factored=False)
    w = descend(task, beginning, bench.pick(100, STEPS, STEPS))
    weights = scores_of(task.problems, w).softmax(dim=-1)
    redrawn = _other_labels(task.problems.labels, generator)
    numbers = clear(weights).nonzero()[:, 0].tolist()
    kept = {
        "shared": weights > SHARED,
        "single": _one_hot(weights.argmax(dim=-1)),
        "redrawn": _one_hot(task.best(redrawn)),
    }
    chosen = [
        Chosen(
            tokens=task.problems.tokens[k],
            queries=task.problems.queries[k],
            kept={name: tokens[k] for name, tokens in kept.items()},
        )
        for k in numbers
    ]
    solved = dict(zip(numbers, bench.map(solve_chosen, chosen), strict=True))
    end = Descended(task=task, w=w, weights=weights, redrawn=redrawn, per_seed=n)
    return _judge(end, {k: one for k, one in solved.items() if None not in one.values()})


@dataclass(frozen=True, kw_only=True)
class Descended:
    """Problems of one width after descent."""

    task: Task
    w: Matrices
    weights: Float[Tensor, "problem sample tokens"]
    redrawn: Float[Tensor, "problem sample"]
    per_seed: int


def _judge(end: Descended, solved: Mapping[int, Solved]) -> Ends:
    """Compare ends with the SVMs of the same problems."""
    kept = list(solved)
    cosines: dict[str, list[float]] = {}
    for name in ("shared", "single", "redrawn"):
        matrices = [(end.w[k], solved[k][name]) for k in kept]
        cosines[name] = [float(cosine(a[None], b[None])) for a, b in matrices if b is not None]
    alone = (end.weights > SHARED).sum(dim=-1) == 1
    top, labels = end.weights.argmax(dim=-1), end.task.problems.labels
    right, wrong = (alone & (top == end.task.best(y)) for y in (labels, end.redrawn))
    return Ends(
        width=end.w.shape[-1],
        drawn=len(end.w),
        seeds=[k // end.per_seed for k in kept],
        cosines=cosines,
        mixed=(~alone).any(dim=1)[kept].tolist(),
        best=right.sum(dim=1)[kept].tolist(),
        other=wrong.sum(dim=1)[kept].tolist(),
        alone=alone.sum(dim=1)[kept].tolist(),
    )


def _other_labels(labels: Tensor, generator: torch.Generator) -> Tensor:
    """Return labels drawn anew, again where all came out as they were."""
    drawn = labels
    while (same := (drawn == labels).all(dim=1)).any():
        drawn = torch.where(
            same[:, None], draw_labels((len(labels), labels.shape[1]), generator), drawn
        )
    return drawn


# --- claim 7 ---------------------------------------------------------------------------------

UNCLEAR = "in no problem of some seed did attention settle on tokens within these steps"


def _by_seed(bench: Bench, values: Sequence[tuple[int, float]]) -> list[float]:
    """Return the mean of each seed's values; empty where a seed has none."""
    groups = [[v for seed, v in values if seed == place] for place in range(len(bench.seeds))]
    return [sum(group) / len(group) for group in groups] if all(groups) else []


def _paired(bench: Bench, name: str) -> list[float]:
    rows = [zip(end.seeds, end.cosines[name], strict=True) for end in ends_of(bench)]
    return _by_seed(bench, [pair for row in rows for pair in row])


def _data(bench: Bench) -> dict[str, Any]:
    ends = ends_of(bench)
    drawn, kept = sum(end.drawn for end in ends), sum(len(end.seeds) for end in ends)
    by_width = ", ".join(f"{len(end.seeds)} of {end.drawn} at width {end.width}" for end in ends)
    return {
        "ends": [asdict(end) for end in ends],
        "note": f"{kept} of {drawn} problems settled ({by_width}); the others were left out, as in "
        "the paper's code",
    }


def goes_to_general_svm(bench: Bench) -> Outcome:
    """7a: cosine with the SVM of the tokens that share attention; control: redrawn labels."""
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    own, wrong = (_paired(bench, name) for name in ("shared", "redrawn"))
    if not own:
        return judged(bench, Outcome(obstacle=UNCLEAR, data=_data(bench)))
    outcome = Outcome(result=estimate.mean(own), control=estimate.mean(wrong), data=_data(bench))
    return judged(bench, outcome)


def beats_single_tokens(bench: Bench) -> Outcome:
    """7b: by how much that cosine exceeds the one with the SVM of one token a sample.

    Where attention stays on several tokens; control: where it does not, and both SVMs are one.
    """
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    gains: dict[bool, list[tuple[int, float]]] = {True: [], False: []}
    for end in ends_of(bench):
        pairs = zip(end.cosines["shared"], end.cosines["single"], strict=True)
        for seed, is_mixed, (a, b) in zip(end.seeds, end.mixed, pairs, strict=True):
            gains[is_mixed].append((seed, a - b))
    own = _by_seed(bench, gains[True])
    if not (own and gains[False]):
        return judged(bench, Outcome(obstacle=UNCLEAR, data=_data(bench)))
    alone = [gain for _, gain in gains[False]]
    outcome = Outcome(
        result=estimate.mean(own),
        control=estimate.largest(alone, of="problems"),
        data={"mixed": len(gains[True]), "single": len(alone)},
    )
    return judged(bench, outcome)


def picks_best(bench: Bench) -> Outcome:
    """7c: samples on one token that are on their best by the head's score; control: redrawn."""
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    ends = ends_of(bench)
    alone, best, other = (
        sum(sum(getattr(end, name)) for end in ends) for name in ("alone", "best", "other")
    )
    if not alone:
        return judged(bench, Outcome(obstacle=UNCLEAR, data=_data(bench)))
    outcome = Outcome(
        result=estimate.share(best, alone, of="samples"),
        control=estimate.share(other, alone, of="samples"),
        data={"best": best, "alone": alone},
    )
    return judged(bench, outcome)
