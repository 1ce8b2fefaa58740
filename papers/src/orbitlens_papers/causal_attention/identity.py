"""Claims 1 and 2: graphs from linear models whose truth is known, with and without latents.

Enters: a bench. Leaves: outcomes. Correlations are exact, so that a miss is due to the size that
`SAMPLES` gives to the tests: a partial correlation that is small but not zero counts as none.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.explaining.graph import (
    CausalGraph,
    Learner,
    Mark,
    correlation_of,
    graph_of_attention,
)
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.causal_attention.linear import Linear, ancestors, f1, random_linear
from orbitlens_papers.claim import Outcome

N_SEEN, N_LATENT = 7, 2
SAMPLES, ALPHA = 2000, 0.01
N_CURVE = 10  # models a seed for a curve
SIZES = (32, 64, 128, 256, 512, 1024, SAMPLES, 8000)  # for a curve


def _models(bench: Bench, name: str, n_latent: int) -> dict[int, list[Linear]]:
    """Return models with at least one edge among what is seen, a list a seed."""
    models: dict[int, list[Linear]] = {}
    for seed in bench.seeds:
        generator = bench.generator(name, seed)
        models[seed] = []
        while len(models[seed]) < bench.pick(8, 40, 400):
            model = random_linear(N_SEEN, generator=generator, n_latent=n_latent)
            if model.edges():
                models[seed].append(model)
    return models


# --- claim 1: the identity -------------------------------------------------------------------


def skeleton_comes_back(bench: Bench) -> Outcome:
    """1a: F1 of PC's skeleton from A; control: an A that has nothing to do with the model."""
    sizes: tuple[int, ...] = bench.pick((64, SAMPLES), SIZES, SIZES)
    result, control, curve = [], [], []
    for seed, models in _models(bench, "identity", 0).items():
        generator = bench.generator("noise", seed)
        scores, wrong = [], []
        for model in models:
            noise = torch.randn(N_SEEN, N_SEEN, generator=generator).double().softmax(dim=-1)
            scores.append(f1(_pc(model.mixing()).pairs, model.edges()))
            wrong.append(f1(_pc(noise).pairs, model.edges()))
        result.append(sum(scores) / len(scores))
        control.append(sum(wrong) / len(wrong))
        curve.append({str(n): _mean_f1(models[:N_CURVE], n) for n in sizes})
    return Outcome(
        result=estimate.mean(result),
        control=estimate.mean(control),
        data={"scores": result, "control": control, "by samples": curve},
    )


def _mean_f1(models: list[Linear], samples: int) -> float:
    scores = [f1(_pc(model.mixing(), samples).pairs, model.edges()) for model in models]
    return sum(scores) / len(scores)


def _pc(mixing: Float[Tensor, "nodes noise"], samples: int = SAMPLES) -> CausalGraph:
    return graph_of_attention(mixing, samples, ALPHA, learner=Learner.PC)


def _icd(model: Linear, samples: int = SAMPLES) -> CausalGraph:
    return graph_of_attention(model.mixing(), samples, ALPHA, learner=Learner.ICD)


def rows_may_be_scaled(bench: Bench) -> Outcome:
    """1b: largest change of correlations when rows are scaled; control: columns."""
    result, control = [], []
    for seed, models in _models(bench, "identity", 0).items():
        generator = bench.generator("scales", seed)
        for model in models:
            scales = torch.rand(N_SEEN, generator=generator).double() * 10 + 0.1
            mixing = model.mixing()
            before = correlation_of(mixing)
            rows, columns = scales[:, None] * mixing, mixing * scales
            result.append(float((correlation_of(rows) - before).abs().max()))
            control.append(float((correlation_of(columns) - before).abs().max()))
    return Outcome(
        result=estimate.largest(result, of="models"),
        control=estimate.largest(control, of="models"),
        data={"rows": max(result), "columns": max(control)},
    )


# --- claim 2: latents ------------------------------------------------------------------------


def _with_latents(bench: Bench) -> list[dict[str, Any]]:
    """Return what ICD makes of models with two latents, and of their neighbours' truth."""

    def make() -> list[dict[str, Any]]:
        rows = []
        for seed, models in _models(bench, "latents", N_LATENT).items():
            graphs = [_icd(model) for model in models]
            for k, model in enumerate(models):
                row = _compared(graphs[k], model)
                row["control"] = _compared(graphs[k - 1], model)
                rows.append({"seed": seed, **row})
        return rows

    return bench.once("latents", make)


EXACT = 10**16  # samples at which a test errs for want of digits alone


def learners_agree(bench: Bench) -> Outcome:
    """2d: whether ICD and FCI find one graph from exact tests; control: of another model."""
    same: list[float] = []
    wrong: list[bool] = []
    n_edges = 0
    for models in _models(bench, "exact", N_LATENT).values():
        mixings = [model.mixing() for model in models[: bench.pick(2, 10, 100)]]
        by_learner = [
            [graph_of_attention(mixing, EXACT, ALPHA, learner=learner) for mixing in mixings]
            for learner in (Learner.ICD, Learner.FCI)
        ]
        n_edges += sum(len(graph.edges) for graph in by_learner[0])
        for k, graph in enumerate(by_learner[1]):
            same.append(float(by_learner[0][k] == graph))
            wrong.append(by_learner[0][k - 1] == graph)
    return Outcome(
        result=estimate.smallest(same, of="graphs"),
        control=estimate.share(sum(wrong), len(wrong), of="graphs"),
        data={"same": sum(same), "graphs": len(same), "edges": n_edges},
    )


def _compared(graph: CausalGraph, model: Linear) -> dict[str, Any]:
    edges, linked, above = model.edges(), model.inseparable(), ancestors(model.parents)
    shift = model.n_latent
    arrows = [pair for pair, mark in graph.marks.items() if mark is Mark.ARROW]
    # An arrowhead at a says that a is no cause of b: a is not above b.
    right = sum(not bool(above[b + shift, a + shift]) for a, b in arrows)
    return {
        "edges": len(edges),
        "recalled": len(edges & graph.pairs),
        "linked": len(linked),
        "linked, recalled": len(linked & graph.pairs),
        "found": len(graph.pairs),
        "unlinked": len(graph.pairs - linked),
        "arrows": len(arrows),
        "arrows, right": right,
    }


def _shares(rows: list[dict[str, Any]], part: str, whole: str) -> list[float]:
    """Return a share of counts, one a seed."""
    shares = []
    for seed in dict.fromkeys(row["seed"] for row in rows):
        own = [row for row in rows if row["seed"] == seed]
        total = sum(row[whole] for row in own)
        shares.append(sum(row[part] for row in own) / total if total else 0.0)
    return shares


def share_of(bench: Bench, *, part: str, whole: str) -> Outcome:
    """2a, 2b, 2c: a share of edges or arrowheads; control: the graph of another model."""
    rows = _with_latents(bench)
    wrong = [{"seed": row["seed"], **row["control"]} for row in rows]
    result, control = _shares(rows, part, whole), _shares(wrong, part, whole)
    data: dict[str, Any] = {"result": result, "control": control}
    if part == "recalled":
        data["totals"] = {
            name: sum(row[name] for row in rows) for name in rows[0] if name not in NO_COUNTS
        }
    return Outcome(result=estimate.mean(result), control=estimate.mean(control), data=data)


NO_COUNTS = ("seed", "control")
