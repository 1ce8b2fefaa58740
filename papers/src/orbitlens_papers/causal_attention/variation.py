"""How much a graph of attention depends on conventions, on the head, and on names of tokens.

Enters: attention of several sessions. Leaves: plain data: how alike the skeletons are that other
numbers of samples, levels, heads and sessions give, and whether relabelling permutes the graph.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.explaining.graph import CausalGraph, Learner, graph_of_attention

if TYPE_CHECKING:
    from orbitlens_papers.causal_attention.recommender import Plan

# The paper's learner, for all graphs of trained attention.
graph_of = partial(graph_of_attention, learner=Learner.ICD)

ALPHA = 0.01
SAMPLES = (20, 32, 128, 256, 512)  # beside the width
LEVELS = (0.001, 0.05, 0.1)  # beside ALPHA


def alike(first: CausalGraph, second: CausalGraph) -> float:
    """Return the share of edges, of those in either graph, that both have; 1 if neither has any."""
    either = first.pairs | second.pairs
    return len(first.pairs & second.pairs) / len(either) if either else 1.0


def varied(
    attention: Sequence[Float[Tensor, "head _ _"]], plan: "Plan", generator: torch.Generator
) -> list[dict[str, Any]]:
    """Return one row a session and head."""
    rows = []
    chosen = attention[: plan.n_varied]
    base = [[graph_of(h, plan.width, ALPHA) for h in heads] for heads in chosen]
    for place, heads in enumerate(chosen):
        for number, pattern in enumerate(heads):
            row = _conventions(pattern, base[place][number], plan.width)
            row["other head"] = [
                alike(base[place][number], graph)
                for k, graph in enumerate(base[place])
                if k != number
            ]
            row["other session"] = [
                alike(base[place][number], base[k][number])
                for k in range(len(chosen))
                if k != place and len(chosen[k][0]) == len(pattern)
            ]
            row |= _relabelled(pattern, base[place][number], plan.width, generator)
            rows.append(row)
    return rows


def _conventions(
    pattern: Float[Tensor, "tokens tokens"], base: CausalGraph, width: int
) -> dict[str, Any]:
    n_pairs = len(base.nodes) * (len(base.nodes) - 1) / 2
    row: dict[str, Any] = {"density": len(base.edges) / n_pairs}
    by_samples = {n: graph_of(pattern, n, ALPHA) for n in SAMPLES}
    by_level = {level: graph_of(pattern, width, level) for level in LEVELS}
    for name, graphs in (("samples", by_samples), ("level", by_level)):
        row[name] = {str(value): alike(base, graph) for value, graph in graphs.items()}
        row[f"{name}, density"] = {
            str(value): len(graph.edges) / n_pairs for value, graph in graphs.items()
        }
    return row


def _relabelled(
    pattern: Float[Tensor, "tokens tokens"],
    base: CausalGraph,
    width: int,
    generator: torch.Generator,
) -> dict[str, bool]:
    """Say whether graphs move with the names of tokens, and whether columns matter at all."""
    order = torch.randperm(len(pattern), generator=generator).tolist()
    names = {old: new for new, old in enumerate(order)}
    moved = graph_of(pattern[order][:, order], width, ALPHA)
    columns = graph_of(pattern[:, order], width, ALPHA)
    mixed = [row[torch.randperm(len(row), generator=generator)] for row in pattern]
    return {
        "moves": moved == base.relabelled(names),
        "stays": moved == base,
        "columns": columns == base,
        "entries": graph_of(torch.stack(mixed), width, ALPHA) == base,
    }
