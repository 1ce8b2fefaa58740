"""A two-layer transformer of attention alone, and sequences that come back after a random lag.

Enters: sizes and lags. Leaves: sequences, a model with its attention, and how much of it goes where
an induction head looks. Every sequence draws its lag anew: x_t = x_{t-lag}, and the first `lag`
tokens are random and all different. From the second pass on a head that matches looks from x_t to
the place behind its earlier occurrence, t - lag + 1, which lies at another distance in every
sequence. Scores of a layer's heads come from a learnt weight by distance, as in arXiv 2409.10559,
and from what tokens say; nothing is trained apart, and nothing starts near a solution.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from orbitlens.lab.fitting import seeded
from orbitlens.tracing.induction import derangement

NATS = 40.0  # by which the right place is preferred in weights set by hand


@dataclass(frozen=True, kw_only=True)
class LagSetup:
    """What is trained, on which lags, and for how long."""

    lags: tuple[int, ...]  # each as likely
    layers: int = 2
    heads: int = 2
    width: int = 32
    symbols: int = 24
    length: int = 48
    batch: int = 32
    steps: int = 500


@dataclass(frozen=True, kw_only=True)
class Returning:
    """Sequences, and the lag of each."""

    tokens: Int[Tensor, "batch steps"]
    lags: Int[Tensor, " batch"]

    @property
    def known(self) -> Bool[Tensor, "batch steps"]:
        """Places from which the next token follows: the present one was there `lag` before."""
        return torch.arange(self.tokens.shape[1] - 1) >= self.lags[:, None]

    @property
    def second(self) -> Bool[Tensor, "batch steps"]:
        """Those of the second pass."""
        return self.known & (torch.arange(self.tokens.shape[1] - 1) < 2 * self.lags[:, None])


def returning(setup: LagSetup, n: int, generator: torch.Generator) -> Returning:
    """Return n sequences, each with a lag of its own."""
    choice = torch.randint(len(setup.lags), (n,), generator=generator)
    lags = torch.tensor(setup.lags)[choice]
    symbols = torch.rand(n, setup.symbols, generator=generator).argsort(dim=1)
    places = torch.arange(setup.length)[None] % lags[:, None]
    return Returning(tokens=symbols.gather(1, places), lags=lags)


def reordered(drawn: Returning, generator: torch.Generator) -> Returning:
    """Return the same sequences whose second pass has its tokens in another order.

    No token stays in its place, so that what stood behind a token does not stand at that distance
    again; a head that looks back by a distance does as before.
    """
    tokens = drawn.tokens.clone()
    for row, lag in enumerate(drawn.lags.tolist()):
        order = derangement(lag, generator=generator)
        tokens[row, lag : 2 * lag] = drawn.tokens[row, order]
    return Returning(tokens=tokens, lags=drawn.lags)


# --- the model -------------------------------------------------------------------------------


class Attention(nn.Module):
    """One causal layer; scores q k / sqrt(width of a head) + weight of the distance."""

    def __init__(self, setup: LagSetup) -> None:
        """Draw weights; those of distances start at zero."""
        super().__init__()
        self.heads = setup.heads
        self.qkv = nn.Linear(setup.width, 3 * setup.width, bias=False)
        self.out = nn.Linear(setup.width, setup.width, bias=False)
        self.distance = nn.Parameter(torch.zeros(setup.heads, setup.length))

    def forward(
        self, x: Float[Tensor, "batch steps d_model"], hidden: int = 0
    ) -> tuple[Float[Tensor, "batch steps d_model"], Float[Tensor, "batch head steps steps"]]:
        """Return x with what the heads add, and their attention; `hidden`: a distance unseen."""
        n, steps, width = x.shape
        parts = self.qkv(x).view(n, steps, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        back = torch.arange(steps)[:, None] - torch.arange(steps)[None]
        unseen = (back < 0) | ((back == hidden) & (back > 0))
        scores = q @ k.mT / math.sqrt(q.shape[-1]) + self.distance[:, back.clamp_min(0)]
        attention = scores.masked_fill(unseen, -torch.inf).softmax(dim=-1)
        mixed = (attention @ v).transpose(1, 2).reshape(n, steps, width)
        return x + self.out(mixed), attention


class TwoLayers(nn.Module):
    """Embedding, layers of attention, readout: no norm, no MLP, no position but distances."""

    def __init__(self, setup: LagSetup, seed: int) -> None:
        """Draw weights."""
        super().__init__()
        with seeded(seed):
            self.embedding = nn.Embedding(setup.symbols, setup.width)
            self.layers = nn.ModuleList(Attention(setup) for _ in range(setup.layers))
            self.readout = nn.Linear(setup.width, setup.symbols, bias=False)

    def forward(
        self, tokens: Int[Tensor, "batch steps"], hidden: int = 0
    ) -> tuple[Float[Tensor, "batch steps vocabulary"], list[Tensor]]:
        """Return logits and the attention of every layer; the first may not see one distance."""
        x, seen = self.embedding(tokens), []
        for number, layer in enumerate(self.layers):
            x, attention = layer(x, hidden if number == 0 else 0)
            seen.append(attention)
        return self.readout(x), seen


def hand_set(setup: LagSetup, *, distance: int = 0) -> TwoLayers:
    """Return a model whose every weight is a choice: a known answer.

    Its first layer writes the token in front into a part of the stream of its own; the second
    matches that with the present token. With a distance the second layer looks back by it instead,
    whatever the tokens: what passes for induction where all lags are the same.
    """
    n = setup.symbols
    model = TwoLayers(LagSetup(**{**vars(setup), "heads": 1, "width": 3 * n, "layers": 2}), seed=0)
    eye = torch.eye(n)
    token, front, answer = (slice(k * n, (k + 1) * n) for k in range(3))
    first, second = cast(list[Attention], list(model.layers))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[:, token] = eye
        first.distance[0, 1] = NATS
        q, k, v = first.qkv.weight.view(3, 3 * n, 3 * n)
        v[token, token], first.out.weight[front, token] = eye, eye
        q, k, v = second.qkv.weight.view(3, 3 * n, 3 * n)
        v[token, token], second.out.weight[answer, token] = eye, eye
        if distance:
            second.distance[0, distance] = NATS
        else:
            strength = NATS * math.sqrt(3 * n)
            q[token, token], k[token, front] = strength * eye, eye
        model.readout.weight[:, answer] = eye
    return model


# --- what is read off ------------------------------------------------------------------------


def behind_earlier(model: TwoLayers, drawn: Returning) -> Float[Tensor, " head"]:
    """Return the last layer's mean attention from the second pass to t - lag + 1, by head."""
    with torch.no_grad():
        _, seen = model(drawn.tokens[:, :-1])
    rows = torch.arange(drawn.tokens.shape[1] - 1)
    # Rows of the first pass have no such place; they are left out below.
    columns = (rows - drawn.lags[:, None] + 1).clamp(0, len(rows) - 1)
    n_heads = seen[-1].shape[1]
    there = seen[-1].gather(-1, columns[:, None, :, None].expand(-1, n_heads, -1, 1))[..., 0]
    return torch.stack([there[:, head][drawn.second].mean() for head in range(n_heads)])


def induction(
    model: TwoLayers, drawn: Returning, generator: torch.Generator
) -> tuple[float, float]:
    """Return the best head's attention where tokens come back, and at the same places reordered.

    The best is the one with the largest difference, which is the score.
    """
    same = behind_earlier(model, drawn)
    other = behind_earlier(model, reordered(drawn, generator))
    best = int((same - other).argmax())
    return float(same[best]), float(other[best])


def in_front(model: TwoLayers, drawn: Returning) -> list[float]:
    """Return the first layer's mean attention by distance 1, 2, ... 8; the head with most on 1."""
    with torch.no_grad():
        _, seen = model(drawn.tokens[:, :-1])
    steps = drawn.tokens.shape[1] - 1
    # Rows that see at least all these distances count.
    by_head = [
        seen[0][:, :, torch.arange(8, steps), torch.arange(8 - back, steps - back)].mean(dim=(0, 2))
        for back in range(1, 9)
    ]
    best = int(by_head[0].argmax())
    return [float(heads[best]) for heads in by_head]


def accuracy(model: TwoLayers, drawn: Returning, *, hidden: int = 0) -> float:
    """Return the share of next tokens that are right where they are known."""
    with torch.no_grad():
        logits, _ = model(drawn.tokens[:, :-1], hidden)
    right = logits.argmax(dim=-1) == drawn.tokens[:, 1:]
    return float(right[drawn.known].double().mean())


def known_loss(model: TwoLayers, drawn: Returning) -> Float[Tensor, ""]:
    """Return the mean loss of next tokens where they are known, in nats."""
    logits, _ = model(drawn.tokens[:, :-1])
    return nn.functional.cross_entropy(logits[drawn.known], drawn.tokens[:, 1:][drawn.known])


def lags_of(least: int, most: int, *, even: bool) -> Sequence[int]:
    """Return the even or the odd lags from the least to the most."""
    return [lag for lag in range(least, most + 1) if (lag % 2 == 0) is even]
