"""The runs that claims share: descent on W and on (K, Q), and the SVM solutions beside them.

Enters: a bench. Leaves: problems with the paths of both descents, and for each problem the
separating matrices of least Frobenius and nuclear norm. The tokens to separate are those that
attention selects in the end: descent may settle on locally optimal ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens_papers.attention_svm import margin
from orbitlens_papers.attention_svm.margin import Norm
from orbitlens_papers.attention_svm.problems import (
    Descent,
    Matrices,
    Path,
    Problems,
    Sizes,
    descend,
    draw,
    draw_labels,
    selected,
    start,
)
from orbitlens_papers.bench import Bench

STEPS = 1500
LOOKS = (0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 120, 200, 300, 500, 800, 1150)
KINDS = ("plain", "factored")  # descent on W, and on K and Q


@dataclass(frozen=True, kw_only=True)
class Runs:
    """Problems of all seeds, one after the other, and where both descents went."""

    problems: Problems
    redrawn: Float[Tensor, "problem sample"]  # labels that are others in at least one sample
    paths: Mapping[str, Path]  # by kind


def n_problems(bench: Bench) -> int:
    """Return how many problems a seed has."""
    return bench.pick(3, 25, 100)


def joined(parts: list[Problems]) -> Problems:
    """Return problems one after the other."""
    return Problems(
        tokens=torch.cat([p.tokens for p in parts]),
        queries=torch.cat([p.queries for p in parts]),
        labels=torch.cat([p.labels for p in parts]),
        head=torch.cat([p.head for p in parts]),
    )


def draw_all(bench: Bench, name: str, sizes: Sizes | None = None) -> Problems:
    """Return the problems of all seeds."""
    n = n_problems(bench)
    return joined([draw(n, bench.generator(name, seed), sizes) for seed in bench.seeds])


def start_all(bench: Bench, name: str, problems: Problems, *, factored: bool) -> list[Tensor]:
    """Return a start for the problems of all seeds."""
    return start(problems, bench.generator(name, bench.seeds[0]), factored=factored)


def by_seed(bench: Bench, values: Float[Tensor, " problem"]) -> list[float]:
    """Return the mean of each seed's problems."""
    means: list[float] = values.view(len(bench.seeds), -1).mean(dim=1).tolist()
    return means


def runs_of(bench: Bench) -> Runs:
    """Return the runs of this bench, made once."""
    return bench.once("attention-svm runs", lambda: _runs(bench))


def _runs(bench: Bench) -> Runs:
    problems = draw_all(bench, "problems")
    paths = {}
    for kind in KINDS:
        factored = kind == "factored"
        beginning = start_all(bench, f"start {kind}", problems, factored=factored)
        how = Descent(steps=STEPS, factored=factored)
        paths[kind] = descend(problems, beginning, how, LOOKS)
    return Runs(problems=problems, redrawn=_other_labels(bench, problems), paths=paths)


def _other_labels(bench: Bench, problems: Problems) -> Tensor:
    """Return labels drawn anew, again where all came out as they were."""
    generator = bench.generator("redrawn labels", bench.seeds[0])
    shape = (len(problems), problems.labels.shape[1])
    labels = draw_labels(shape, generator)
    while (same := (labels == problems.labels).all(dim=1)).any():
        labels = torch.where(same[:, None], draw_labels(shape, generator), labels)
    return labels


# --- solutions -------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Selection:
    """One problem to solve: its tokens, and those to select, by name."""

    tokens: Float[Tensor, "sample tokens d_model"]
    queries: Float[Tensor, "sample d_model"]
    chosen: Mapping[str, Int[Tensor, " sample"]]


@dataclass(frozen=True, kw_only=True)
class Solved:
    """The solutions of all problems, by name of the choice and by norm."""

    matrices: Mapping[tuple[str, Norm], Matrices]
    gaps: tuple[float, ...]  # duality gaps of all of them


def solve_selection(selection: Selection) -> dict[tuple[str, Norm], margin.Solution]:
    """Return both solutions for every choice; a choice that came before is not solved again."""
    known: dict[tuple[tuple[int, ...], Norm], margin.Solution] = {}
    solutions = {}
    for name, chosen in selection.chosen.items():
        for norm in Norm:
            key = (tuple(chosen.tolist()), norm)
            if key not in known:
                known[key] = margin.solve(selection.tokens, selection.queries, chosen, norm=norm)
            solutions[name, norm] = known[key]
    return solutions


def solved(bench: Bench) -> Solved:
    """Return the solutions for the runs of this bench, made once."""
    return bench.once("attention-svm solutions", lambda: _solved(bench))


def _solved(bench: Bench) -> Solved:
    runs = runs_of(bench)
    choices = {kind: selected(runs.problems, runs.paths[kind].end) for kind in KINDS}
    choices["redrawn"] = runs.problems.optimal(runs.redrawn)
    return solve_all(bench, runs.problems, choices)


def solve_all(bench: Bench, problems: Problems, choices: Mapping[str, Tensor]) -> Solved:
    """Return both solutions of every problem for every choice."""
    selections = [
        Selection(
            tokens=problems.tokens[k],
            queries=problems.queries[k],
            chosen={name: chosen[k] for name, chosen in choices.items()},
        )
        for k in range(len(problems))
    ]
    solutions = bench.map(solve_selection, selections)
    keys = [(name, norm) for name in choices for norm in Norm]
    return Solved(
        matrices={
            key: torch.stack([torch.from_numpy(one[key].w) for one in solutions]) for key in keys
        },
        gaps=tuple(one[key].gap for one in solutions for key in keys),
    )
