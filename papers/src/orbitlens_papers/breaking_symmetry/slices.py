"""Claims 4, 5c and 6f: what can be read off a hidden state: where it stands, and which token it is.

Enters: a bench. Leaves: outcomes. Slice k is the column of states above input k. Inputs are random
tokens, each drawn independently, so that no token tells anything about its neighbours.
"""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.lab.fitting import seeded
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.order.probes import adjacency, classify, regress, split_samples
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

N_TOKENS = 24
N_LAYERS = 4
VOCABULARY = 16

States = Float[Tensor, "samples items d_model"]


def fresh_model(mask: str, seed: int, *, position: str = "none", residual: str = "all") -> Any:  # noqa: ANN401
    """Return an untrained model at its usual start."""
    config = OrbitConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=N_LAYERS,
        num_attention_heads=4,
        max_position_embeddings=N_TOKENS,
        position=position,
        mask=mask,
        residual=residual,
    )
    with seeded(seed):
        return OrbitForCausalLM(config).eval()


def random_inputs(n: int, generator: torch.Generator) -> Int[Tensor, "samples items"]:
    """Return independent tokens."""
    return torch.randint(VOCABULARY, (n, N_TOKENS), generator=generator)


def states_of(model: Any, items: Tensor) -> list[States]:  # noqa: ANN401 - a model of transformers
    """Return the states of every layer, the embedding first."""
    with torch.inference_mode():
        states = model(input_ids=items, output_hidden_states=True).hidden_states
    return [layer.double() for layer in states]


# --- claim 4: position -----------------------------------------------------------------------


def place_score(states: States, generator: torch.Generator) -> float:
    """Return the held-out R^2 of a linear probe that reads k off the state at k."""
    cut = split_samples(len(states))
    n_items, width = states.shape[1:]
    place = torch.arange(n_items, dtype=torch.float64)
    fit = regress(
        states[:cut].reshape(-1, width),
        place.repeat(cut),
        states[cut:].reshape(-1, width),
        place.repeat(len(states) - cut),
        generator=generator,
    )
    return fit.score


def place_readings(bench: Bench) -> dict[str, list[dict[str, list[float]]]]:
    """Return R^2 and adjacency of every layer for both masks; a list over seeds."""

    def make() -> dict[str, list[dict[str, list[float]]]]:
        n = bench.pick(120, 384, 1024)
        by_kind: dict[str, list[dict[str, list[float]]]] = {"causal": [], "full": []}
        for mask, rows in by_kind.items():
            for seed in bench.seeds:
                generator = bench.generator("places", seed)
                layers = states_of(fresh_model(mask, seed), random_inputs(n, generator))
                rows.append(
                    {
                        "place": [place_score(layer, generator) for layer in layers],
                        "adjacency": [adjacency(layer) for layer in layers],
                    }
                )
        return by_kind

    return bench.once("places", make)


def _first_layers(rows: list[dict[str, list[float]]], what: str) -> list[float]:
    """Return for each seed the best of layers 1 and 2."""
    return [max(row[what][1:3]) for row in rows]


def position_is_decodable(bench: Bench) -> Outcome:
    """4a: R^2 of position in the first two layers; control: full attention."""
    readings = place_readings(bench)
    return Outcome(
        result=estimate.mean(_first_layers(readings["causal"], "place")),
        control=estimate.mean(_first_layers(readings["full"], "place")),
        data={"readings": readings},
    )


def neighbours_are_close(bench: Bench) -> Outcome:
    """4b: how often a neighbour's state is the closer one; control: full attention."""
    readings = place_readings(bench)
    return Outcome(
        result=estimate.mean(_first_layers(readings["causal"], "adjacency")),
        control=estimate.mean(_first_layers(readings["full"], "adjacency")),
    )


# --- claim 5: identity -----------------------------------------------------------------------


def identity_table(
    states: States, items: Tensor, generator: torch.Generator, *, shuffled: bool = False
) -> list[list[float]]:
    """Return how often token j is read off slice k, for all k (rows) and j (columns)."""
    cut = split_samples(len(states))
    labels = items[torch.randperm(len(items), generator=generator)] if shuffled else items
    table = []
    for k in range(states.shape[1]):
        rows = states[:, k]
        table.append(
            [
                classify(
                    rows[:cut], labels[:cut, j], rows[cut:], labels[cut:, j], generator=generator
                ).score
                for j in range(states.shape[1])
            ]
        )
    return table


def peak(table: list[list[float]]) -> float:
    """Return the mean over slices of (own token - best other token)."""
    values = torch.tensor(table)
    own = values.diagonal()
    others = values.masked_fill(torch.eye(len(values)).bool(), -1.0).amax(dim=1)
    return float((own - others).mean())


def lead_by_layer(rows: Sequence[Sequence[float]]) -> str:
    """Return the mean and 95 % interval of every layer in words, the embedding left out.

    >>> lead_by_layer([[1.0, 0.5, 0.1], [1.0, 0.5, 0.1]])
    'by layer, 1 to 2: 0.50 [0.50, 0.50], 0.10 [0.10, 0.10]'
    """
    columns = list(zip(*rows, strict=True))[1:]
    found = [estimate.mean(column) for column in columns]
    words = [f"{one.value:.2f} [{one.low:.2f}, {one.high:.2f}]" for one in found]
    return f"by layer, 1 to {len(words)}: {', '.join(words)}"


def identity_readings(bench: Bench) -> dict[str, list[dict[str, Any]]]:
    """Return tables of every layer with and without residuals, untrained; a list over seeds."""

    def make() -> dict[str, list[dict[str, Any]]]:
        n, n_slices = bench.pick(240, 600, 1500), bench.pick(6, 10, 16)
        by_kind: dict[str, list[dict[str, Any]]] = {
            "all": [],
            "none": [],
            "attention": [],
            "mlp": [],
        }
        for number, (residual, rows) in enumerate(by_kind.items()):
            for seed in bench.seeds:
                generator = bench.generator("identity", seed)
                items = random_inputs(n, generator)
                layers = states_of(fresh_model("causal", seed, residual=residual), items)
                near, names = [layer[:, :n_slices] for layer in layers], items[:, :n_slices]
                tables = [identity_table(layer, names, generator) for layer in near]
                noise = identity_table(near[-1], names, generator, shuffled=True)
                rows.append(
                    {
                        "peaks": [peak(t) for t in tables],
                        "last": tables[-1],
                        "shuffled": peak(noise),
                    }
                )
            bench.step((number + 1) / len(by_kind))
        return by_kind

    return bench.once("identity", make)


def slices_keep_identity(bench: Bench) -> Outcome:
    """5c: own token less the best other token, last layer; control: labels shuffled over inputs."""
    readings = identity_readings(bench)
    own = readings["all"]
    return Outcome(
        result=estimate.mean([row["peaks"][-1] for row in own]),
        control=estimate.mean([row["shuffled"] for row in own]),
        data={
            "peaks": {name: [row["peaks"] for row in rows] for name, rows in readings.items()},
            "tables": {name: rounded(rows[0]["last"]) for name, rows in readings.items()},
        },
    )


def residuals_keep_identity(bench: Bench) -> Outcome:
    """6f: that lead with all residuals, less without any; control: labels shuffled."""
    readings = identity_readings(bench)
    with_all, without = readings["all"], readings["none"]
    return Outcome(
        result=estimate.difference(
            [row["peaks"][-1] for row in with_all], [row["peaks"][-1] for row in without]
        ),
        control=estimate.difference(
            [row["shuffled"] for row in with_all], [row["shuffled"] for row in without]
        ),
    )


def rounded(table: list[list[float]]) -> list[list[float]]:
    """Return a table that is short on paper."""
    return [[round(value, 3) for value in row] for row in table]
