"""Claims 1 to 4 and 7: what diagonal linear attention learns of s_{t+1} = W s_t, and what it needs.

Enters: a bench. Leaves: outcomes. Losses are per coordinate; those of core claims are measured on
fresh sequences, with the model computed token by token, whatever it was trained on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from orbitlens_papers import estimate
from orbitlens_papers.autoregression.attention import (
    Setting,
    Spectrum,
    characters,
    closed_form,
    eigenvalues,
    expected_loss,
    in_order,
    sampled_loss,
)
from orbitlens_papers.autoregression.heads import Task, solve
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

Solution = dict[str, Any]


def size(bench: Bench) -> tuple[int, int]:
    """Return coordinates and tokens."""
    return bench.pick((4, 6), (6, 10), (10, 20))


def all_solutions(bench: Bench) -> dict[str, list[Solution]]:
    """Return solutions by name, such as "circle 4": one a seed, the best of its starts."""
    return bench.once("solutions", lambda: _solve_all(bench))


def _solve_all(bench: Bench) -> dict[str, list[Solution]]:
    d, n_tokens = size(bench)
    settings = {s: Setting(spectrum=s, d=d, n_tokens=n_tokens) for s in Spectrum}
    numbers = tuple(bench.generator("starts", seed).initial_seed() for seed in bench.seeds)
    n_steps = bench.pick(300, 2000, 10_000)
    # Half the heads suffice, but of single starts most end in a local minimum.
    starts = {Spectrum.CIRCLE: 4, Spectrum.PAIRS: bench.pick(16, 64, 256)}

    def task(spectrum: Spectrum, n_heads: int, **more: Any) -> Task:  # noqa: ANN401
        given = {"n_steps": n_steps, "n_starts": starts[spectrum], **more}
        return Task(setting=settings[spectrum], n_heads=n_heads, numbers=numbers, **given)

    tasks = {f"{s.value} {h}": task(s, h) for s in Spectrum for h in range(1, d + 1)}
    tasks["constant"] = task(Spectrum.CIRCLE, d, constant=True)
    tasks["shuffled"] = task(Spectrum.CIRCLE, d, shuffled=True)
    tasks["sampled"] = Task(
        setting=Setting(spectrum=Spectrum.CIRCLE, d=4, n_tokens=6),
        n_heads=4,
        numbers=numbers[: bench.pick(1, 2, 8)],
        n_steps=bench.pick(300, 1500, 5000),
        n_starts=bench.pick(1, 4, 4),
        sampled=bench.pick(16, 64, 256),
    )
    return dict(zip(tasks, bench.map(solve, tasks.values()), strict=True))


def _of(bench: Bench, name: str, number: Callable[[Solution], float]) -> list[float]:
    return [number(solution) for solution in all_solutions(bench)[name]]


def _full(bench: Bench, spectrum: Spectrum = Spectrum.CIRCLE) -> str:
    return f"{spectrum.value} {size(bench)[0]}"


# --- numbers read off a solution -------------------------------------------------------------


def off_diagonal(solution: Solution) -> float:
    """Return the largest entry of C beside its diagonal over the mean of the diagonal."""
    c = torch.tensor(solution["c"], dtype=torch.float64)
    rest = c - torch.diag(c.diagonal())
    return float(rest.abs().max() / c.diagonal().abs().mean())


def other_places(solution: Solution) -> float:
    """Return the largest weight of a place before the last over that of the last."""
    p = torch.tensor(solution["p"], dtype=torch.float64).abs()
    return float(p[:-1].max() / p[-1])


def product_gap(solution: Solution) -> float:
    """Return max |C_ii p_T - 1|: by how much W_ii = conj(s_{T-1}) s_T is not applied to s_T."""
    c = torch.tensor(solution["c"], dtype=torch.float64)
    return float((c.diagonal() * solution["p"][-1] - 1.0).abs().max())


def head_overlap(solution: Solution) -> float:
    """Return the largest |A_g . B_h|, g and h different heads, over the smallest |A_h . B_h|."""
    a, b = (torch.tensor(solution[key], dtype=torch.float64) for key in ("a", "b"))
    gram = (a @ b.T).abs()
    own = gram.diagonal()
    return float((gram - torch.diag(own)).max() / own.min())


def place_ratio(solution: Solution) -> float:
    """Return p_{T-1} / p_T."""
    return float(solution["p"][-2] / solution["p"][-1])


def trigonometric_gap(solution: Solution) -> float:
    """Return how far a solution is from 2 cos(theta) s_T - s_{T-1}: ratio -1/2, blocks of ones."""
    blocks = _blocks(solution)
    apart = max(abs(own / other - 1.0) if other else 1.0 for own, other in blocks)
    return max(abs(place_ratio(solution) + 0.5), apart)


def family_gap(solution: Solution) -> float:
    """Return the largest |p_{T-1} / p_T + C01 / (C00 + C01)| over rows."""
    ratio = place_ratio(solution)
    return max(abs(ratio + other / (own + other)) for own, other in _blocks(solution))


def _blocks(solution: Solution) -> list[tuple[float, float]]:
    """Return (C_ii, C_ij) for every row i, j being the conjugate of i."""
    c = solution["c"]
    return [(c[i][i], c[i][i ^ 1]) for i in range(len(c))]


# --- claims ----------------------------------------------------------------------------------


def reaches_zero(bench: Bench) -> Outcome:
    """1a: loss with d heads, however trained; control: all places weigh the same."""
    solutions = all_solutions(bench)
    d, n_tokens = size(bench)
    losses = [s["sampled"] for name in (_full(bench), "sampled") for s in solutions[name]]
    keys = {"unitary": _full(bench), "orthogonal": f"pairs {d // 2}"}
    return Outcome(
        result=estimate.largest(losses, of="models"),
        control=estimate.smallest(_of(bench, "constant", lambda s: s["sampled"]), of="models"),
        data={
            "d": d,
            "n_tokens": n_tokens,
            "sampled_training": [s["sampled"] for s in solutions["sampled"]],
            "examples": {label: solutions[name][0] for label, name in keys.items()},
        },
    )


def diagonal(bench: Bench) -> Outcome:
    """1b: entries of C beside its diagonal; control: all places weigh the same."""
    return Outcome(
        result=estimate.largest(_of(bench, _full(bench), off_diagonal), of="models"),
        control=estimate.smallest(_of(bench, "constant", off_diagonal), of="models"),
    )


def last_place(bench: Bench) -> Outcome:
    """1c: weights of other places; control: conjugate pairs, half as many heads."""
    name = f"pairs {size(bench)[0] // 2}"
    return Outcome(
        result=estimate.largest(_of(bench, _full(bench), other_places), of="models"),
        control=estimate.smallest(_of(bench, name, other_places), of="models"),
    )


def applies_estimate(bench: Bench) -> Outcome:
    """1d: C_ii p_T = 1; control: tokens in random order."""
    return Outcome(
        result=estimate.largest(_of(bench, _full(bench), product_gap), of="models"),
        control=estimate.smallest(_of(bench, "shuffled", product_gap), of="models"),
    )


def loss_formula(bench: Bench) -> Outcome:
    """1e: closed form against a Monte-Carlo; control: the place T - 1 counted twice."""
    d, n_tokens = size(bench)
    setting = Setting(spectrum=Spectrum.CIRCLE, d=d, n_tokens=n_tokens)
    n = bench.pick(20_000, 200_000, 1_000_000)
    rows = []
    for seed in bench.seeds:
        generator = bench.generator("formula", seed)
        c = torch.randn(d, d, generator=generator, dtype=torch.float64)
        p = torch.randn(n_tokens, generator=generator, dtype=torch.float64)
        c, p = c / d**0.5, p / n_tokens**0.5
        values = eigenvalues(setting, n, generator)
        terms = characters(setting, in_order(setting))
        rows.append(
            {
                "sampled": float(sampled_loss(values, c, p, in_order(setting)[0]).mean()),
                "exact": float(expected_loss(c[None], p[None], terms)),
                "once": closed_form(c, p),
                "twice": closed_form(c, p, counted=2),
            }
        )
    gaps = {key: [abs(r[key] / r["sampled"] - 1) for r in rows] for key in ("once", "twice")}
    return Outcome(
        result=estimate.largest(gaps["once"], of="random models"),
        control=estimate.largest(gaps["twice"], of="random models"),
        data={"rows": rows, "samples": n},
    )


def heads_are_orthogonal(bench: Bench) -> Outcome:
    """2a: overlap of different heads; control: all places weigh the same."""
    return Outcome(
        result=estimate.largest(_of(bench, _full(bench), head_overlap), of="models"),
        control=estimate.smallest(_of(bench, "constant", head_overlap), of="models"),
    )


def capacity(bench: Bench) -> Outcome:
    """3a: distance of the loss from 1 - H/d, H < d; control: conjugate pairs."""
    d, _ = size(bench)
    losses = {
        s.value: [[x["loss"] for x in all_solutions(bench)[f"{s.value} {h}"]] for h in _heads(d)]
        for s in Spectrum
    }
    gaps = {
        name: [
            abs(loss - (1 - h / d)) for h, row in zip(_heads(d), rows, strict=True) for loss in row
        ]
        for name, rows in losses.items()
    }
    return Outcome(
        result=estimate.largest(gaps["circle"], of="models"),
        control=estimate.largest(gaps["pairs"], of="models"),
        data={"d": d, "losses": losses},
    )


def _heads(d: int) -> range:
    return range(1, d + 1)


def half_suffices(bench: Bench) -> Outcome:
    """4a: loss on conjugate pairs with d/2 heads or more; control: fewer."""
    d, _ = size(bench)
    enough = [s["sampled"] for h in range(d // 2, d + 1) for s in _pairs(bench, h)]
    fewer = [s["sampled"] for h in range(1, d // 2) for s in _pairs(bench, h)]
    return Outcome(
        result=estimate.largest(enough, of="models"),
        control=estimate.smallest(fewer, of="models"),
        data={"starts": {str(h): [s["losses"] for s in _pairs(bench, h)] for h in _heads(d)}},
    )


def half_is_needed(bench: Bench) -> Outcome:
    """4b: loss on conjugate pairs with fewer than d/2 heads; control: d/2."""
    d, _ = size(bench)
    fewer = [s["sampled"] for h in range(1, d // 2) for s in _pairs(bench, h)]
    return Outcome(
        result=estimate.smallest(fewer, of="models"),
        control=estimate.largest([s["sampled"] for s in _pairs(bench, d // 2)], of="models"),
    )


def half_rule(bench: Bench) -> Outcome:
    """4c: distance from the trigonometric rule, d/2 <= H < d; control: H = d."""
    d, _ = size(bench)
    solutions = [s for h in range(d // 2, d) for s in _pairs(bench, h)]
    full = _pairs(bench, d)
    return Outcome(
        result=estimate.largest([trigonometric_gap(s) for s in solutions], of="models"),
        control=estimate.largest([trigonometric_gap(s) for s in full], of="models"),
        data={
            "ratios": {
                str(h): [place_ratio(s) for s in _pairs(bench, h)] for h in range(d // 2, d + 1)
            }
        },
    )


def family(bench: Bench) -> Outcome:
    """4d: distance from the rule of the family with d heads; control: from the rule -1/2."""
    full = _pairs(bench, size(bench)[0])
    return Outcome(
        result=estimate.largest([family_gap(s) for s in full], of="models"),
        control=estimate.largest([abs(place_ratio(s) + 0.5) for s in full], of="models"),
        data={
            "points": [
                [-other / (own + other), place_ratio(s)] for s in full for own, other in _blocks(s)
            ]
        },
    )


def _pairs(bench: Bench, n_heads: int) -> Sequence[Solution]:
    return all_solutions(bench)[f"{Spectrum.PAIRS.value} {n_heads}"]


def order_is_needed(bench: Bench, *, how: str) -> Outcome:
    """7: loss where order is hidden, "shuffled" or "constant"; control: as it is."""
    losses = _of(bench, how, lambda s: s["loss"])
    return Outcome(
        result=estimate.smallest(losses, of="models"),
        control=estimate.largest(_of(bench, _full(bench), lambda s: s["loss"]), of="models"),
        data={
            "losses": losses,
            "p": all_solutions(bench)[how][0]["p"],
            "least": _least(bench, how),
        },
    )


def _least(bench: Bench, how: str) -> float | None:
    """Return the least loss possible where all places weigh the same; None if not known.

    With p = 1 the loss is that of d - 2 tr C + (T - 1) |C|^2 + |C 1|^2, least at
    C = ((T - 1) I + 1 1^T)^(-1).
    """
    if how != "constant":
        return None
    d, n_tokens = size(bench)
    return 1.0 - (1.0 - 1.0 / (n_tokens - 1 + d)) / (n_tokens - 1)
