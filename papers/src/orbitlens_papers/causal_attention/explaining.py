"""One recommender explained: every method on the same sessions, and graphs of its attention.

Enters: a `Plan`. Leaves: plain data, one row a session. A method that finds no set that changes the
prediction is charged: its set counts as all items, and what an exhaustive search needs is added to
its calls. Sessions are left out, and counted, in which no set at all changes the prediction or two
items attend so much alike that a head has no graph.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.explaining.api import ExplainOptions, graphs_of_heads, strengths_of
from orbitlens.explaining.graph import AlikeError, CausalGraph, Learner
from orbitlens.explaining.question import question_of
from orbitlens.explaining.search import (
    Search,
    TokenSet,
    every_set,
    first_change,
    graph_order,
    ranked_order,
)
from orbitlens_papers.causal_attention.edges import edge_scores, planted_graph
from orbitlens_papers.causal_attention.recommender import (
    Plan,
    Trained,
    all_predictions,
    gradient_times_input,
    train_recommender,
)
from orbitlens_papers.causal_attention.sessions import (
    LONGEST,
    SHORTEST,
    World,
    draw_sessions,
    renamed,
)
from orbitlens_papers.causal_attention.variation import varied

ALPHA = 0.01
MOST = ExplainOptions.max_calls
# Two lengths, so that even a few sessions have another of the same length to compare with.
VARIED = (SHORTEST, SHORTEST + 1)
N_RENAMED = 8  # worlds with other names, for the control of claim 4

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Case:
    """One session, what the model predicts for it under all masks, and its explanation."""

    asked: Int[Tensor, " tokens"]
    items: list[int]
    prediction: int
    table: dict[TokenSet, int]
    attention: Float[Tensor, "head tokens tokens"]
    graphs: list[CausalGraph]  # one a head
    found: Search  # along the graphs

    @property
    def target(self) -> int:
        """The last place."""
        return len(self.items)

    def changes(self, chosen: TokenSet) -> bool:
        """Say whether masking a set changes the prediction."""
        return self.table[chosen] != self.prediction


def explained(plan: Plan) -> dict[str, Any]:
    """Train a recommender and explain its predictions; top-level, so that processes can do it."""
    trained = train_recommender(plan)
    generator = torch.Generator().manual_seed(plan.number + 1)
    cases, n_stubborn = _cases(trained, generator)
    worlds = [renamed(trained.world, generator=generator) for _ in range(N_RENAMED)]
    rows = []
    for case in cases:
        others = [c for c in cases if c is not case and c.target == case.target]
        other = others[int(torch.randint(len(others), (), generator=generator))] if others else case
        noises = [_noise(case, generator) for _ in range(2)]
        drawn = [_graphs(noise, plan) for noise in noises]
        searches = _methods(trained, case, other, generator)
        searches["random attention"] = (
            first_change(_offered(noises[0], drawn[0]), case.changes),
            2,
        )
        rows.append(
            _row(case, searches, trained.world, worlds) | {"edges": _edges(trained, case, drawn)}
        )
    return {
        "rows": rows,
        "stubborn": n_stubborn,
        "hits": trained.hits,
        "best": trained.best,
        "losses": trained.losses,
        "example": _example(cases, trained.world),
        "varied": varied(
            [case.attention for case in cases if case.target in VARIED], plan, generator
        ),
    }


def _cases(trained: Trained, generator: torch.Generator) -> tuple[list[Case], int]:
    cases: list[Case] = []
    lengths = range(SHORTEST, LONGEST + 1)
    drawn = 0
    while len(cases) < trained.plan.n_explained and drawn < 3 * trained.plan.n_explained:
        length = lengths[drawn % len(lengths)]
        drawn += 1
        session = draw_sessions(trained.world, 1, length, generator=generator)[0][0]
        case = case_of(trained, session)
        if case is not None:
            cases.append(case)
    return cases, drawn - len(cases)


def case_of(trained: Trained, session: Int[Tensor, " tokens"]) -> Case | None:
    """Return a session explained; None where no set changes the prediction, or a head has no graph.

    As `explain_prediction` does it, but what is predicted under a mask is read from a table of all
    masks, which other methods need as well.
    """
    asked = session.clone()
    asked[-1] = trained.plan.mask_id
    prediction, table = all_predictions(trained, asked)
    if all(value == prediction for value in table.values()):
        return None
    subject = question_of(trained.model, asked, mask_id=trained.plan.mask_id)
    attention = subject.attention(prediction)
    try:
        graphs = _graphs(attention, trained.plan)
    except AlikeError:
        return None
    if len(graphs) < trained.plan.heads:
        return None
    offered = _offered(attention, graphs)
    return Case(
        asked=asked,
        items=session[:-1].tolist(),
        prediction=prediction,
        table=table,
        attention=attention,
        graphs=graphs,
        found=first_change(offered, lambda s: table[s] != prediction, most=MOST),
    )


def _methods(
    trained: Trained, case: Case, other: Case, generator: torch.Generator
) -> dict[str, tuple[Search, int]]:
    """Return what every method finds, and the model calls it needs before it masks anything."""
    places = range(case.target)
    weights = case.attention.mean(dim=0)[case.target, : case.target]
    slopes = gradient_times_input(trained, case.asked, case.prediction)[: case.target]
    orders: dict[str, tuple[Iterable[TokenSet], int]] = {
        "attention": (ranked_order(_ranked(weights)), 2),
        "gradient": (ranked_order(_ranked(slopes)), 2),
        "random": (ranked_order(torch.randperm(case.target, generator=generator).tolist()), 1),
        "exhaustive": (every_set(places), 1),
        "attention, all sets": (_by_weight(weights), 2),
        "other session": (_offered(other.attention, other.graphs), 2),
    }
    searches = {name: (first_change(o, case.changes), n) for name, (o, n) in orders.items()}
    searches["graph"] = (case.found, 2)
    return searches


def _noise(case: Case, generator: torch.Generator) -> Float[Tensor, "head tokens tokens"]:
    return torch.randn(case.attention.shape, generator=generator).softmax(dim=-1).double()


def _edges(
    trained: Trained, case: Case, random: Sequence[Sequence[CausalGraph]]
) -> dict[str, float] | None:
    """Return how well skeletons have the generator's edges; None where there are none."""
    true = trained.world.edges_in([*case.items, case.prediction])
    if not true:
        return None
    planted = planted_graph(true, case.target + 1, trained.plan.width, ALPHA)
    return edge_scores(true, case.attention, case.graphs, random, planted)


def _graphs(attention: Float[Tensor, "head tokens tokens"], plan: Plan) -> list[CausalGraph]:
    graphs, _ = graphs_of_heads(attention, plan.width, ALPHA, learner=Learner.ICD)
    return list(graphs.values())


def _offered(
    attention: Float[Tensor, "head tokens tokens"], graphs: Sequence[CausalGraph]
) -> Iterable[TokenSet]:
    target = attention.shape[1] - 1
    return graph_order(graphs, target, strengths=strengths_of(attention, target))


def _ranked(weights: Float[Tensor, " tokens"]) -> list[int]:
    ranking: list[int] = weights.argsort(descending=True).tolist()
    return ranking


def _by_weight(weights: Float[Tensor, " tokens"]) -> Iterable[TokenSet]:
    """Return all sets by size, then by the attention they get: the search without the graph."""
    key: Callable[[TokenSet], tuple[int, float]] = lambda s: (  # noqa: E731
        len(s),
        -float(weights[list(s)].sum()),
    )
    return sorted(every_set(range(len(weights))), key=key)


def _row(
    case: Case, searches: dict[str, tuple[Search, int]], world: World, worlds: Sequence[World]
) -> Row:
    """Return sizes, calls and hits of all methods on one session."""
    spare = searches["exhaustive"][0].tried
    row: Row = {"n": case.target, "sizes": {}, "calls": {}, "found": {}}
    for name, (search, before) in searches.items():
        done = search.tokens is not None
        row["sizes"][name] = len(search.tokens) if search.tokens is not None else case.target
        row["calls"][name] = before + search.tried + (0 if done else spare)
        row["found"][name] = done
    sets = {name: search.tokens or () for name, (search, _) in searches.items()}
    ranked = _ranked(case.attention.mean(dim=0)[case.target, : case.target])
    sets["attention, as many"] = tuple(ranked[: len(sets["graph"])])
    row["hits"] = _hits(case, sets, [world])
    row["wrong hits"] = _hits(case, sets, worlds)
    return row


def _hits(
    case: Case, sets: dict[str, TokenSet], worlds: Sequence[World]
) -> dict[str, float] | None:
    """Return how often each set has a parent of the predicted item; None if none is there."""
    parents = [set(world.parents_in(case.prediction, case.items)) for world in worlds]
    some = [places for places in parents if places]
    if not some:
        return None
    return {
        name: sum(bool(places & set(chosen)) for places in some) / len(some)
        for name, chosen in sets.items()
    }


def _example(cases: Sequence[Case], world: World) -> dict[str, Any]:
    """Return one session for a picture: the first of middling length with two tokens to explain."""
    fit = [c for c in cases if c.target == SHORTEST + 1 and len(c.found.tokens or ()) == 2]
    case = (fit or list(cases))[0]
    tokens = case.found.tokens or ()
    return {
        "items": case.items,
        "prediction": case.prediction,
        "parents": list(world.parents_in(case.prediction, case.items)),
        "tokens": list(tokens),
        "changed to": case.table[tokens] if tokens else None,
        "attention": case.attention.tolist(),
        "graphs": [
            [
                [edge.first, edge.second, edge.at_first.value, edge.at_second.value]
                for edge in graph.edges
            ]
            for graph in case.graphs
        ],
    }
