"""Claims 1 to 5: what emerges in three stages of training, and what it is worth.

Enters: a bench. Leaves: outcomes. One number a seed; the same runs serve all claims. The controls
are the same runs on contexts in random order, on heads that start alike, and without products of
heads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.induction_heads.chains import CHAINS, Chain
from orbitlens_papers.induction_heads.learning import ChainSetup, learn, learn_at_once, select
from orbitlens_papers.jobs import Arm, run_arms
from orbitlens_papers.trained import judged

Run = Mapping[str, Any]
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "shuffled": {"context": "shuffled"},
    "alike": {"alike": True},
    "degree 1": {"degree": 1},
}


def chain_of(bench: Bench, name: str) -> Chain:
    """Return the family of chains, as wide as the scale allows."""
    return replace(CHAINS[name], window=bench.pick(0, 0, 5) or CHAINS[name].window)


def arm_of(
    bench: Bench, name: str, seeds: Sequence[int], what: Mapping[str, Any] | None = None
) -> Arm[ChainSetup]:
    """Return an arm sized for the scale; data depend on chain and seed alone."""
    setup = ChainSetup(
        chain=chain_of(bench, name),
        degree=bench.pick(2, 2, 3),
        n_train=bench.pick(100, 3000, 10_000),
        n_test=bench.pick(50, 2000, 5000),
        steps=bench.pick((6, 4, 6), (200, 150, 400), (400, 300, 800)),
    )
    return Arm(
        setup=replace(setup, **(what or {})),
        seeds=[bench.generator(f"chains {name}", seed).initial_seed() for seed in seeds],
    )


def runs(bench: Bench, variant: str) -> dict[str, list[Run]]:
    """Return the runs of a variant by chain, one a seed; all variants are trained at once."""
    return bench.once("stages", lambda: _runs(bench))[variant]


def _runs(bench: Bench) -> dict[str, dict[str, list[Run]]]:
    seeds = list(bench.seeds)[: bench.pick(2, 1000, 1000)]
    arms = {(v, c): arm_of(bench, c, seeds, VARIANTS[v]) for v in VARIANTS for c in CHAINS}
    done = run_arms(bench, learn, arms)
    return {v: {c: list(done[v, c]) for c in CHAINS} for v in VARIANTS}


def _each(bench: Bench, variant: str, chain: str, number: Callable[[Run], float]) -> list[float]:
    return [number(run) for run in runs(bench, variant)[chain]]


def _worst(bench: Bench, variant: str, number: Callable[[Run], float]) -> list[float]:
    """Return the larger number of the two chains, one a seed."""
    columns = [_each(bench, variant, chain, number) for chain in CHAINS]
    return [max(pair) for pair in zip(*columns, strict=True)]


def _to_ngram(where: str, model: str = "model") -> Callable[[Run], float]:
    return lambda run: float(run[where][model] / run[where]["ngram"])


# --- claims ----------------------------------------------------------------------------------


def selects(bench: Bench, *, chain: str) -> Outcome:
    """1: share of the parents' set after the first stage; control: contexts in random order."""
    plain = runs(bench, "plain")[chain]
    arm = arm_of(bench, chain, bench.seeds, VARIANTS["shuffled"])
    seeds = [
        bench.generator(f"shuffle {k}, {chain}", seed).initial_seed()
        for seed in bench.seeds
        for k in range(bench.pick(1, 4, 4))
    ]
    mixed = bench.map(select, replace(arm, seeds=seeds).jobs)
    outcome = Outcome(
        result=estimate.mean([run["parents_share"] for run in plain]),
        control=estimate.mean(mixed, of="shuffles"),
        data={
            "sets": [list(s) for s in arm.setup.sets],
            "shares": [run["shares"] for run in plain],
            "mixed": mixed,
            "curve": plain[0]["stages"][0],
        },
    )
    return judged(bench, outcome)


def copies(bench: Bench, *, chain: str) -> Outcome:
    """2: weight of each parent's head on its lag, the least; control: heads that start alike."""
    by_variant = {
        variant: runs(bench, variant)[chain] for variant in ("plain", "alike", "shuffled")
    }
    copied = {name: [run["copied"] for run in rows] for name, rows in by_variant.items()}
    outcome = Outcome(
        result=estimate.mean(copied["plain"]),
        control=estimate.mean(copied["alike"]),
        data={
            "copied": copied,
            "before": by_variant["plain"][0]["lags_before"],
            "after": by_variant["plain"][0]["lags"],
            "alike": by_variant["alike"][0]["lags"],
            "curve": by_variant["plain"][0]["stages"][1],
        },
    )
    return judged(bench, outcome)


def predicts(bench: Bench, *, chain: str) -> Outcome:
    """3: held-out loss over that of counting n-grams; control: contexts in random order."""
    by_variant = {variant: runs(bench, variant)[chain] for variant in VARIANTS}
    outcome = Outcome(
        result=estimate.mean([_to_ngram("test")(run) for run in by_variant["plain"]]),
        control=estimate.mean([_to_ngram("test")(run) for run in by_variant["shuffled"]]),
        data={
            "test": {name: [run["test"] for run in rows] for name, rows in by_variant.items()},
            "stages": by_variant["plain"][0]["stages"],
            "example": by_variant["plain"][0]["example"],
        },
    )
    return judged(bench, outcome)


def beats_unigrams(bench: Bench) -> Outcome:
    """3c: held-out loss over that of counting tokens; control: contexts in random order."""

    def ratio(run: Run) -> float:
        return float(run["test"]["model"] / run["test"]["unigram"])

    mixed = [min(pair) for pair in zip(*_columns(bench, "shuffled", ratio), strict=True)]
    outcome = Outcome(
        result=estimate.mean(_worst(bench, "plain", ratio)),
        control=estimate.mean(mixed),
        data={"mixed": _columns(bench, "shuffled", ratio)},
    )
    return judged(bench, outcome)


def _columns(bench: Bench, variant: str, number: Callable[[Run], float]) -> list[list[float]]:
    return [_each(bench, variant, chain, number) for chain in CHAINS]


def grows(bench: Bench) -> Outcome:
    """3d: by what factor a grew, the least of all runs; control: contexts in random order."""
    own, mixed = (
        [run["growth"] for rows in runs(bench, variant).values() for run in rows]
        for variant in ("plain", "shuffled")
    )
    outcome = Outcome(
        result=estimate.smallest(own, of="runs"),
        control=estimate.largest(mixed, of="runs"),
        data={"growth": own, "shuffled": mixed},
    )
    return judged(bench, outcome)


def needs_products(bench: Bench) -> Outcome:
    """3e: loss over counting's where no feature multiplies heads; control: pairs of heads."""
    without, with_pairs = (
        [min(pair) for pair in zip(*_columns(bench, variant, _to_ngram("test")), strict=True)]
        for variant in ("degree 1", "plain")
    )
    outcome = Outcome(
        result=estimate.mean(without),
        control=estimate.mean(with_pairs),
        data={"columns": _columns(bench, "degree 1", _to_ngram("test"))},
    )
    return judged(bench, outcome)


def comes_in_order(bench: Bench) -> Outcome:
    """4a: share of runs of all weights at once in which the stages follow each other."""
    seeds = list(bench.seeds)[: bench.pick(1, 4, 8)]
    what = {"joint": bench.pick(10, 2000, 8000), "n_train": bench.pick(100, 1500, 10_000)}
    runs_of = run_arms(bench, learn_at_once, {c: arm_of(bench, c, seeds, what) for c in CHAINS})
    done = [run for rows in runs_of.values() for run in rows]
    right = sum(_in_order(run["times"]) for run in done)
    outcome = Outcome(
        result=estimate.share(right, len(done), of="runs"),
        data={
            "times": [run["times"] for run in done],
            "curves": {chain: rows[0] for chain, rows in runs_of.items()},
        },
    )
    return judged(bench, outcome)


def _in_order(times: list[int]) -> bool:
    """Return whether selector, copier and classifier were done, and in that order.

    >>> _in_order([1, 5, 9]), _in_order([1, -1, 9])
    (True, False)
    """
    return min(times) >= 0 and times == sorted(times)


def generalises(bench: Bench, *, where: str) -> Outcome:
    """5: loss over counting's where the model was not trained; control: random order there."""
    mixed = [
        min(pair)
        for pair in zip(*_columns(bench, "plain", _to_ngram(where, "shuffled")), strict=True)
    ]
    outcome = Outcome(
        result=estimate.mean(_worst(bench, "plain", _to_ngram(where))),
        control=estimate.mean(mixed),
        data={
            "losses": {
                chain: [run[where] for run in rows] for chain, rows in runs(bench, "plain").items()
            }
        },
    )
    return judged(bench, outcome)
