"""How often a learner is right on episodes of held-out classes.

Enters: a learner and the split it was trained on. Leaves: shares of right answers. Features of all
held-out pictures are computed once; an episode then is a choice among them, the same for all that
are compared.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens_papers.bench import Bench
from orbitlens_papers.on_chip.baselines import nearest, one_step, prototypes
from orbitlens_papers.on_chip.episodes import Episodes, Split, draw, relabelled
from orbitlens_papers.on_chip.model import Asked, Keys, Learner, Logits, Parts, among

WAY = 5
SHOTS = (1, 2, 3, 5)
FEW, MANY = 1, 5

Answering = Callable[[Keys, Int[Tensor, "episodes tokens"], Asked], Logits]


@dataclass(frozen=True)
class Table:
    """Vectors of all held-out pictures, by their number."""

    rows: Float[Tensor, "pictures width"]
    size: tuple[int, int]  # classes, pictures a class

    def shown(self, episodes: Episodes) -> tuple[Keys, Asked]:
        """Return the vectors of contexts and of what is asked."""
        return self.rows[episodes.context], self.rows[episodes.queries]


@torch.no_grad()
def features(learner: Learner, parts: Split) -> Table:
    """Return what the encoder makes of every held-out picture."""
    flat = parts.held.flatten(0, 1)
    rows = torch.cat([learner.encoder(chunk) for chunk in flat.split(512)])
    return Table(rows, (parts.held.shape[0], parts.held.shape[1]))


def pixels(parts: Split) -> Table:
    """Return the pictures themselves."""
    return Table(parts.held.flatten(0, 1).flatten(1), (parts.held.shape[0], parts.held.shape[1]))


def asked_episodes(bench: Bench, parts: Split, seed: int, shots: int) -> Episodes:
    """Return the episodes that everything is judged on, for a seed and a number of shots."""
    generator = bench.generator(f"episodes {shots}", seed)
    size = (parts.held.shape[0], parts.held.shape[1])
    n = bench.pick(100, 2000, 5000)
    return draw(generator, n=n, way=WAY, shots=shots, of=size)


def shuffled(bench: Bench, episodes: Episodes, seed: int, shots: int) -> Episodes:
    """Return the same episodes with labels at random."""
    return relabelled(episodes, bench.generator(f"random labels {shots}", seed))


def accuracy(logits: Tensor, episodes: Episodes) -> float:
    """Return the share of queries whose label has the largest logit of those in use."""
    chosen = among(logits, episodes.used).argmax(dim=-1)
    return float((episodes.used.gather(1, chosen) == episodes.answers).double().mean())


@torch.no_grad()
def judge(answer: Answering, table: Table, episodes: Episodes) -> float:
    """Return how often something is right that answers from vectors."""
    context, asked = table.shown(episodes)
    return accuracy(answer(context, episodes.labels, asked), episodes)


def judge_step(table: Table, episodes: Episodes) -> float:
    """Return how often one gradient step on a readout is right."""
    context, asked = table.shown(episodes)
    return accuracy(one_step(context, episodes.labels, asked), episodes)


def by_shots(bench: Bench, learner: Learner, parts: Split, seed: int) -> dict[str, list[float]]:
    """Return accuracies by number of shots: the learner and what it is compared with."""
    table, plain = features(learner, parts), pixels(parts)
    centred = Table(_normal(table.rows), table.size)
    accuracies: dict[str, list[float]] = {}
    for shots in SHOTS:
        episodes = asked_episodes(bench, parts, seed, shots)
        at_random = shuffled(bench, episodes, seed, shots)
        rows = {
            "learner": judge(learner, table, episodes),
            "random labels": judge(learner, table, at_random),
            "pixels": judge(nearest, plain, episodes),
            "prototypes": judge(prototypes, table, episodes),
            "means of pixels": judge(prototypes, plain, episodes),
            "gradient step": judge_step(centred, episodes),
        }
        for name, value in rows.items():
            accuracies.setdefault(name, []).append(value)
    return accuracies


def _normal(rows: Float[Tensor, "pictures width"]) -> Float[Tensor, "pictures width"]:
    return torch.nn.functional.normalize(rows, dim=-1)


def parts_of(learner: Learner, table: Table, episodes: Episodes) -> Parts:
    """Return queries, keys and values of episodes."""
    context, asked = table.shown(episodes)
    return learner.parts(context, episodes.labels, asked)


def recall_by_place(
    learner: Learner, table: Table, episodes: Episodes, decay: float
) -> Float[Tensor, " tokens"]:
    """Return how often the class shown at each place of a one-shot context is named right."""
    parts = parts_of(learner, table, episodes)
    n_tokens = parts.k.shape[1]
    kept = decay ** torch.arange(n_tokens - 1, -1, -1, dtype=parts.v.dtype)
    read = (parts.q @ parts.k.mT * kept) @ parts.v @ learner.readout
    chosen = among(read, episodes.used).argmax(dim=-1)
    right = (episodes.used.gather(1, chosen) == episodes.answers).double()
    # Where in the context the class of each query was shown.
    place = (episodes.labels[:, None, :] == episodes.answers[..., None]).long().argmax(dim=-1)
    return torch.stack([right[place == t].mean() for t in range(n_tokens)])
