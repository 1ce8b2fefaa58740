"""A small BERT4Rec of the lab: trained to fill in masked items, read with sets of items masked.

Enters: a `Plan`. Leaves: a trained model in evaluation mode, its hit rate, the predictions with
every set of items masked, and gradient times input.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.lab.fitting import fit, seeded
from orbitlens_papers.causal_attention.sessions import (
    LONGEST,
    SHORTEST,
    World,
    draw_sessions,
    random_world,
)

IGNORED = -100
HIDDEN = 0.15  # share of items masked in training, beside the last


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One world, one model: its sizes and the numbers its randomness starts from."""

    number: int
    n_items: int = 40
    n_kinds: int = 3
    n_sessions: int = 20_000
    width: int = 64
    layers: int = 2
    heads: int = 2
    steps: int = 1500
    batch: int = 128
    rate: float = 2e-3
    n_explained: int = 100  # sessions
    n_varied: int = 10  # sessions whose graphs are made with other n and alpha

    @property
    def mask_id(self) -> int:
        """The token that stands for a masked item."""
        return self.n_items


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A recommender and the world it knows."""

    plan: Plan
    world: World
    model: Any
    losses: list[float]
    hits: float  # share of held-out last items that are ranked first
    best: float  # the same of a reader who knows the world and the user's kind


def train_recommender(plan: Plan) -> Trained:
    """Draw a world, train on its sessions, and look at held-out ones."""
    from orbitlens.orbit import OrbitConfig, OrbitForCausalLM

    generator = torch.Generator().manual_seed(plan.number)
    world = random_world(plan.n_items, plan.n_kinds, generator=generator)
    lengths = range(SHORTEST, LONGEST + 1)
    n_each = plan.n_sessions // len(lengths)
    sessions = [draw_sessions(world, n_each, n, generator=generator)[0] for n in lengths]
    config = OrbitConfig(
        vocab_size=plan.n_items + 1,
        hidden_size=plan.width,
        num_hidden_layers=plan.layers,
        num_attention_heads=plan.heads,
        max_position_embeddings=LONGEST,
        mask="full",
    )
    with seeded(plan.number):
        model = OrbitForCausalLM(config)
    losses = _fit(model, sessions, plan, generator)
    model.eval()
    hits, best = _judge(model, world, plan, generator)
    return Trained(plan=plan, world=world, model=model, losses=losses, hits=hits, best=best)


def _fit(
    model: Any,  # noqa: ANN401 - a model of the lab
    sessions: list[Tensor],
    plan: Plan,
    generator: torch.Generator,
) -> list[float]:
    """Train with AdamW and a rate that falls to nothing; a batch has sessions of one length."""

    def loss_at(step: int) -> Tensor:
        group = sessions[int(torch.randint(len(sessions), (), generator=generator))]
        batch = group[torch.randint(len(group), (plan.batch,), generator=generator)]
        hidden = torch.rand(batch.shape, generator=generator) < HIDDEN
        hidden[:, -1] = True
        inputs = batch.masked_fill(hidden, plan.mask_id)
        loss: Tensor = model(inputs, targets=batch.masked_fill(~hidden, IGNORED)).loss
        return loss

    optimizer = torch.optim.AdamW(model.train().parameters(), lr=plan.rate, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.rate, plan.steps, pct_start=0.1)
    losses = fit(loss_at, optimizer, steps=plan.steps, schedule=schedule, clip=1.0)
    every: list[float] = losses[:: max(1, plan.steps // 50)].tolist()
    return every


@torch.no_grad()
def _judge(
    model: Any,  # noqa: ANN401
    world: World,
    plan: Plan,
    generator: torch.Generator,
) -> tuple[float, float]:
    sessions, kinds = draw_sessions(world, 1000, 10, generator=generator)
    asked = sessions.clone()
    asked[:, -1] = plan.mask_id
    hits = model(asked).logits[:, -1].argmax(dim=-1) == sessions[:, -1]
    present = torch.zeros(len(sessions), world.n_items, dtype=torch.bool)
    present.scatter_(1, sessions[:, :-1], True)
    best = world.weights(kinds, present, last=True).argmax(dim=-1) == sessions[:, -1]
    return float(hits.double().mean()), float(best.double().mean())


@torch.no_grad()
def all_predictions(
    trained: Trained, asked: Int[Tensor, " tokens"]
) -> tuple[int, dict[tuple[int, ...], int]]:
    """Return the prediction for the last place, and with every set of the others masked."""
    n_others = len(asked) - 1
    numbers = torch.arange(2**n_others)
    masked: Bool[Tensor, "set place"] = (numbers[:, None] >> torch.arange(n_others)) & 1 == 1
    ids = asked.repeat(len(numbers), 1)
    ids[:, :-1] = ids[:, :-1].masked_fill(masked, trained.plan.mask_id)
    predicted = trained.model(ids, logits_to_keep=1).logits[:, 0].argmax(dim=-1).tolist()
    sets = [tuple(k for k in range(n_others) if number >> k & 1) for number in numbers.tolist()]
    return predicted[0], dict(zip(sets[1:], predicted[1:], strict=True))


def gradient_times_input(
    trained: Trained, asked: Int[Tensor, " tokens"], prediction: int
) -> Float[Tensor, " tokens"]:
    """Return how much each embedding, times its gradient, adds to the predicted item's logit."""
    vectors = trained.model.model.embed_tokens(asked[None]).detach().requires_grad_()
    logit = trained.model(inputs_embeds=vectors).logits[0, -1, prediction]
    (slope,) = torch.autograd.grad(logit, vectors)
    products: Tensor = (slope * vectors.detach())[0].sum(dim=-1).abs()
    return products
