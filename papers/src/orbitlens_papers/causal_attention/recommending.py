"""Claims 3 to 7: explanations of a recommender whose items' causes are known.

Enters: a bench. Leaves: outcomes. All methods are judged on the same sessions of the same models.
"""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.causal_attention.explaining import Row, explained
from orbitlens_papers.causal_attention.recommender import Plan
from orbitlens_papers.claim import Outcome
from orbitlens_papers.trained import judged

NOISE = "random attention"  # another session's keeps habits of the model, and would not do
SOURCE = "sessions drawn from a generator with known parents; no public data set"


def runs(bench: Bench) -> list[dict[str, Any]]:
    """Return one explained recommender a seed."""

    def make() -> list[dict[str, Any]]:
        plans = [_plan(bench, seed) for seed in bench.seeds]
        return bench.map(explained, plans[: bench.pick(1, len(plans), len(plans))])

    return bench.once("recommenders", make)


def _plan(bench: Bench, seed: int) -> Plan:
    return Plan(
        number=bench.generator("world", seed).initial_seed() % 2**31,
        n_items=bench.pick(40, 40, 200),
        n_sessions=bench.pick(2000, 10_000, 100_000),
        layers=bench.pick(2, 2, 4),
        steps=bench.pick(40, 400, 10_000),
        n_explained=bench.pick(3, 30, 500),
        n_varied=bench.pick(2, 6, 50),
    )


Number = Callable[[Row, str], float]


def _means(bench: Bench, number: Number, method: str) -> list[float]:
    return [fmean([number(row, method) for row in run["rows"]]) for run in runs(bench)]


# --- claim 3: fewer calls, smaller sets ------------------------------------------------------


def fewer_calls(bench: Bench) -> Outcome:
    """3a: calls over those of an exhaustive search; control: graphs of random attention."""
    calls: Number = lambda row, name: float(row["calls"][name])  # noqa: E731
    whole = _means(bench, calls, "exhaustive")

    def ratio(method: str) -> list[float]:
        return [a / b for a, b in zip(_means(bench, calls, method), whole, strict=True)]

    outcome = Outcome(
        result=estimate.mean(ratio("graph")),
        control=estimate.mean(ratio(NOISE)),
        data={
            "source": SOURCE,
            "methods": {name: _summary(bench, name) for name in runs(bench)[0]["rows"][0]["sizes"]},
            "rows": [_short(row) for run in runs(bench) for row in run["rows"]],
            "models": [_about(run) for run in runs(bench)],
            "example": runs(bench)[0]["example"],
        },
    )
    return judged(bench, outcome)


def _summary(bench: Bench, name: str) -> dict[str, list[float]]:
    """Return mean size, mean calls and the share found of a method, one a seed."""
    return {
        "size": _means(bench, lambda row, name: row["sizes"][name], name),
        "calls": _means(bench, lambda row, name: row["calls"][name], name),
        "found": _means(bench, lambda row, name: row["found"][name], name),
    }


def _short(row: Row) -> dict[str, Any]:
    return {"n": row["n"], "sizes": row["sizes"], "calls": row["calls"]}


def _about(run: dict[str, Any]) -> dict[str, Any]:
    return {name: run[name] for name in ("hits", "best", "losses", "stubborn")}


def no_longer(bench: Bench) -> Outcome:
    """3b: share of sessions with a set no longer than attention's; control: random attention."""
    short: Number = lambda row, name: float(  # noqa: E731
        row["sizes"][name] <= row["sizes"]["attention"]
    )
    result, control = (_means(bench, short, name) for name in ("graph", NOISE))
    outcome = Outcome(
        result=estimate.mean(result),
        control=estimate.mean(control),
        data={"result": result, "control": control},
    )
    return judged(bench, outcome)


def smaller(bench: Bench, *, than: str, number: str = "sizes") -> Outcome:
    """3c, 3d, 3e: mean size or calls less that of another; control: random attention."""

    def gap(name: str) -> list[float]:
        return _means(bench, lambda row, name: row[number][name] - row[number][than], name)

    result, control = gap("graph"), gap(NOISE)
    outcome = Outcome(
        result=_paired(result),
        control=_paired(control),
        data={"result": result, "control": control, "other session": gap("other session")},
    )
    return judged(bench, outcome)


def _paired(gaps: Sequence[float]) -> estimate.Estimate:
    return estimate.difference(gaps, [0.0] * len(gaps))


# --- claim 4: true parents -------------------------------------------------------------------


def hits_parents(bench: Bench) -> Outcome:
    """4a: how much oftener a parent is in the set than in attention's; control: other parents."""
    result, control, shares = [], [], []
    for run in runs(bench):
        result.append(_gap([row["hits"] for row in run["rows"]]))
        control.append(_gap([row["wrong hits"] for row in run["rows"]]))
        shares.append(_hit_shares([row["hits"] for row in run["rows"]]))
    outcome = Outcome(
        result=_paired(result),
        control=_paired(control),
        data={"shares": shares, "result": result, "control": control},
    )
    return judged(bench, outcome)


def _gap(hits: Sequence[dict[str, float] | None]) -> float:
    shares = _hit_shares(hits)
    return shares["graph"] - shares["attention, as many"] if shares else 0.0


def _hit_shares(hits: Sequence[dict[str, float] | None]) -> dict[str, float]:
    some = [hit for hit in hits if hit is not None]
    return {name: fmean([hit[name] for hit in some]) for name in some[0]} if some else {}


def _edge_scores(bench: Bench) -> dict[str, list[float]]:
    """Return F1 against the generator's edges by where the edges are from, one a seed."""
    by_run = [[row["edges"] for row in run["rows"] if row["edges"]] for run in runs(bench)]
    return {name: [fmean([row[name] for row in rows]) for rows in by_run] for name in by_run[0][0]}


def above_random(bench: Bench) -> Outcome:
    """4b: F1 less that of random attention; control: another draw of that; positive: planted."""
    scores = _edge_scores(bench)
    result, control, positive = (
        estimate.difference(scores[name], scores["random attention"])
        for name in ("trained", "random again", "planted")
    )
    sessions = sum(bool(row["edges"]) for run in runs(bench) for row in run["rows"])
    outcome = Outcome(
        result=result,
        control=control,
        positive=positive,
        data={"scores": scores, "sessions": sessions},
    )
    return judged(bench, outcome)


def has_edges(bench: Bench) -> Outcome:
    """4c: F1 of the graph of trained attention; control: random; positive: planted."""
    scores = _edge_scores(bench)
    outcome = Outcome(
        result=estimate.mean(scores["trained"]),
        control=estimate.mean(scores["random attention"]),
        positive=estimate.mean(scores["planted"]),
    )
    return judged(bench, outcome)


# --- claims 5 to 7: what a graph depends on --------------------------------------------------


def _varied(bench: Bench) -> list[dict[str, Any]]:
    return [row for run in runs(bench) for row in run["varied"]]


def unchanged(bench: Bench, *, what: str, control: str) -> Outcome:
    """5a, 5b: share of graphs that stay as they should; control: a change that matters."""
    rows = _varied(bench)
    counts = [sum(bool(row[name]) for row in rows) for name in (what, control)]
    return Outcome(
        result=estimate.smallest([float(row[what]) for row in rows], of="graphs"),
        control=estimate.share(counts[1], len(rows), of="graphs"),
        data={"same": counts[0], "control": counts[1], "graphs": len(rows)},
    )


def robust(bench: Bench, *, to: str, value: str) -> Outcome:
    """6a, 6b: share of edges that stay when a convention changes; control: another session."""
    overlaps = [[row[to][value] for row in run["varied"]] for run in runs(bench)]
    return _alike(bench, overlaps, data={"varied": _averages(bench, to)})


def same_in_heads(bench: Bench) -> Outcome:
    """7a: share of edges that two heads have in common; control: another session."""
    overlaps = [[fmean(row["other head"]) for row in run["varied"]] for run in runs(bench)]
    return _alike(bench, overlaps, data={})


def _alike(bench: Bench, overlaps: list[list[float]], *, data: dict[str, Any]) -> Outcome:
    others = [
        [fmean(row["other session"]) for row in run["varied"] if row["other session"]]
        for run in runs(bench)
    ]
    result, control = [fmean(v) for v in overlaps], [fmean(v or [0.0]) for v in others]
    outcome = Outcome(
        result=estimate.mean(result),
        control=estimate.mean(control),
        data={"result": result, "control": control, **data},
    )
    return judged(bench, outcome)


def _averages(bench: Bench, to: str) -> dict[str, dict[str, list[float]]]:
    """Return mean likeness and density by the value of a convention, one a seed."""
    values = list(runs(bench)[0]["varied"][0][to])
    by_run = [run["varied"] for run in runs(bench)]
    return {
        "alike": {v: [fmean([row[to][v] for row in rows]) for rows in by_run] for v in values},
        "density": {
            v: [fmean([row[f"{to}, density"][v] for row in rows]) for rows in by_run]
            for v in values
        },
        "base": {"density": [fmean([row["density"] for row in rows]) for rows in by_run]},
    }


# --- claim 8: the paper's own data -----------------------------------------------------------


def paper_data(bench: Bench) -> Outcome:
    """8a: neither the data nor the trained models are at hand."""
    return Outcome(
        obstacle="IMDB reviews, MovieLens-1M and the models trained on them are not at hand; "
        "sessions from a generator take their place in claims 3 and 4"
    )
