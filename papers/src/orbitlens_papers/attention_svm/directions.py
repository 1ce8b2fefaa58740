"""Claims 1, 2 and 5: in which direction descent goes, and what the solutions there are like.

Enters: a bench. Leaves: outcomes. Everything is compared with solutions of convex problems, each
with a bound on how far it is from the best.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens_papers import estimate
from orbitlens_papers.attention_svm import margin
from orbitlens_papers.attention_svm.margin import Norm
from orbitlens_papers.attention_svm.problems import (
    Descent,
    Matrices,
    cosine,
    descend,
    nuclear_norm,
    ranks,
    selected,
)
from orbitlens_papers.attention_svm.runs import (
    KINDS,
    STEPS,
    by_seed,
    runs_of,
    solve_all,
    solved,
    start_all,
)
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.trained import judged

CLOSE = 0.97
OWN = {"plain": Norm.FROBENIUS, "factored": Norm.NUCLEAR}  # the norm that the paper names
OTHER = {"plain": Norm.NUCLEAR, "factored": Norm.FROBENIUS}


def _share(holds: Tensor) -> Estimate:
    return estimate.share(int(holds.sum()), len(holds), of="runs")


def _close(own: Tensor, other: Tensor) -> Tensor:
    """Return in which runs the direction is close to its own solution, and closer than to other."""
    return (own >= CLOSE) & (own > other)


def converges(bench: Bench, *, kind: str) -> Outcome:
    """1a, 2a: share of runs that end close to the solution of their norm.

    Control: the solutions for labels that are drawn anew after training.
    """
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    runs, solutions = runs_of(bench), solved(bench)
    end = runs.paths[kind].end
    own, other = (cosine(end, solutions.matrices[kind, n]) for n in (OWN[kind], OTHER[kind]))
    wrong = [cosine(end, solutions.matrices["redrawn", n]) for n in (OWN[kind], OTHER[kind])]
    return Outcome(
        result=_share(_close(own, other)),
        control=_share(_close(*wrong)),
        data={
            "own": _rounded(own),
            "other": _rounded(other),
            "redrawn": _rounded(wrong[0]),
            "random": _rounded(cosine(_noise(bench, end), solutions.matrices[kind, OWN[kind]])),
            "curves": _curves(bench, kind),
            "spectra": _spectra(bench, kind),
            "steps": list(runs.paths[kind].steps),
        },
    )


def _noise(bench: Bench, like: Matrices) -> Matrices:
    generator = bench.generator("random matrices", bench.seeds[0])
    return torch.randn(like.shape, generator=generator, dtype=like.dtype)


def _rounded(values: Float[Tensor, " problem"]) -> list[float]:
    return [round(value, 6) for value in values.tolist()]


def _curves(bench: Bench, kind: str) -> dict[str, dict[str, list[float]]]:
    """Return cosines along the path with the final solutions, mean and deviation over runs."""
    path, solutions = runs_of(bench).paths[kind], solved(bench)
    curves = {}
    for norm in Norm:
        rows = torch.stack([cosine(w, solutions.matrices[kind, norm]) for w in path.matrices])
        curves[norm.value] = {"mean": _rounded(rows.mean(1)), "sd": _rounded(rows.std(1))}
    return curves


def _spectra(bench: Bench, kind: str) -> dict[str, list[float]]:
    """Return singular values over their norm, mean over runs: of descent and of its solution."""
    end, solution = runs_of(bench).paths[kind].end, solved(bench).matrices[kind, OWN[kind]]
    values = {"descent": torch.linalg.svdvals(end), "solution": torch.linalg.svdvals(solution)}
    return {
        name: _rounded((v / v.norm(dim=1, keepdim=True)).mean(dim=0)) for name, v in values.items()
    }


def wrong_labels(bench: Bench) -> Outcome:
    """1b: cosine with the solution for redrawn labels; control: the own labels."""
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    runs, solutions = runs_of(bench), solved(bench)
    end = runs.paths["plain"].end
    wrong, own = (cosine(end, solutions.matrices[n, Norm.FROBENIUS]) for n in ("redrawn", "plain"))
    return Outcome(
        result=estimate.mean(by_seed(bench, wrong)), control=estimate.mean(by_seed(bench, own))
    )


def unnormalised(bench: Bench) -> Outcome:
    """1c: plain gradient descent: share of runs, of both kinds, nearer to their own norm.

    Control: random matrices in the place of what descent found.
    """
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    problems = runs_of(bench).problems
    nearer, control, data = [], [], {}
    for kind in KINDS:
        factored = kind == "factored"
        how = Descent(
            steps=bench.pick(200, 6000, 100_000), factored=factored, rate=1.0, normalised=False
        )
        beginning = start_all(bench, f"start {kind}", problems, factored=factored)
        end = descend(problems, beginning, how).end
        bench.step(0.2 + 0.2 * factored)
        solutions = solve_all(bench, problems, {kind: selected(problems, end)})
        own, other = (cosine(end, solutions.matrices[kind, n]) for n in (OWN[kind], OTHER[kind]))
        nearer.append(own > other)
        noise = _noise(bench, end)
        own_noise, other_noise = (
            cosine(noise, solutions.matrices[kind, n]) for n in (OWN[kind], OTHER[kind])
        )
        control.append(own_noise > other_noise)
        data[kind] = {"own": _rounded(own), "other": _rounded(other)}
    outcome = Outcome(
        result=_share(torch.cat(nearer)), control=_share(torch.cat(control)), data=data
    )
    return judged(bench, outcome)


def less_nuclear(bench: Bench) -> Outcome:
    """2b: share of problems where K Qᵀ has the smaller nuclear norm, both scaled to |W| = 1.

    Control: a second descent on W from another start in the place of that on (K, Q).
    """
    runs = runs_of(bench)
    plain, factored = (nuclear_norm(runs.paths[kind].end) for kind in KINDS)
    beginning = start_all(bench, "another start", runs.problems, factored=False)
    again = nuclear_norm(descend(runs.problems, beginning, Descent(steps=STEPS)).end)
    return Outcome(
        result=_share(factored < plain),
        control=_share(again < plain),
        data={"plain": _rounded(plain), "factored": _rounded(factored), "again": _rounded(again)},
    )


# --- claim 5: the solutions ------------------------------------------------------------------


def lower_rank(bench: Bench) -> Outcome:
    """5a: rank of the nuclear solution less that of the Frobenius solution, largest.

    Control: the nuclear solution with noise of a hundredth of its norm, as a loose solver leaves.
    """
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    solutions = solved(bench)
    nuclear, frobenius = (
        torch.cat([solutions.matrices[kind, norm] for kind in KINDS])
        for norm in (Norm.NUCLEAR, Norm.FROBENIUS)
    )
    noise = _noise(bench, nuclear)
    size = nuclear.flatten(1).norm(dim=1) / noise.flatten(1).norm(dim=1)
    loose = nuclear + 0.01 * size[:, None, None] * noise
    rank, least, disturbed = ranks(frobenius), ranks(nuclear), ranks(loose)
    return Outcome(
        result=estimate.largest((least - rank).double().tolist(), of="solutions"),
        control=estimate.smallest((disturbed - rank).double().tolist(), of="solutions"),
        data={"nuclear": least.tolist(), "frobenius": rank.tolist()},
    )


def optimal(bench: Bench) -> Outcome:
    """5b: largest duality gap of all solutions; control: the solutions of the other norm."""
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    runs, solutions = runs_of(bench), solved(bench)
    chosen = selected(runs.problems, runs.paths["plain"].end)
    swapped = []
    for k in range(len(bench.seeds)):
        for norm, other in ((Norm.FROBENIUS, Norm.NUCLEAR), (Norm.NUCLEAR, Norm.FROBENIUS)):
            w = solutions.matrices["plain", other][k].numpy()
            sample = runs.problems.tokens[k], runs.problems.queries[k], chosen[k]
            swapped.append(margin.gap_of(w, *sample, norm=norm))
    return Outcome(
        result=estimate.largest(solutions.gaps, of="solutions"),
        control=estimate.smallest(swapped, of="solutions"),
    )


def classifier_agrees(bench: Bench) -> Outcome:
    """5c: largest 1 - cosine between our Frobenius solution and scikit-learn's.

    Control: our nuclear solution in its place.
    """
    if margin.missing():
        return Outcome(obstacle=margin.missing())
    runs, solutions = runs_of(bench), solved(bench)
    chosen = selected(runs.problems, runs.paths["plain"].end)
    theirs = torch.stack(
        [
            torch.tensor(
                margin.by_classifier(runs.problems.tokens[k], runs.problems.queries[k], chosen[k])
            )
            for k in range(len(runs.problems))
        ]
    )
    apart = {norm: 1 - cosine(theirs, solutions.matrices["plain", norm]) for norm in Norm}
    return Outcome(
        result=estimate.largest(apart[Norm.FROBENIUS].tolist(), of="problems"),
        control=estimate.smallest(apart[Norm.NUCLEAR].tolist(), of="problems"),
    )
