"""Claim 6: what one trained layer learns of majority, by position encoding and kind of attention.

Enters: a bench. Leaves: outcomes. Strings have a length of Binomial(100, 1/2) in training, and of
larger means in the tests. Soft models are those of the lab, with a class token in front; hard and
soft readers differ in nothing but how they attend. Ties are rejected, so the boundary lies between
means of 0 and 1/n: what training at n = 50 leaves open costs up to a twentieth at n = 250, where
that many strings have a lead of one or two.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from orbitlens.lab.fitting import fit, seeded
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.orbit.language import IGNORED
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.jobs import Arm, Job, run_arms
from orbitlens_papers.saturated.majority import softmax
from orbitlens_papers.saturated.reader import Reader, straight_through
from orbitlens_papers.saturated.selection import hard
from orbitlens_papers.trained import judged

ZERO, ONE, START, PADDING = range(4)
MEANS = (50, 100, 150, 200, 250)
LONGEST = 640
WIDTH = 32
CHUNK = 100  # strings at once in a test
ENCODINGS = ("none", "sinusoidal", "learned")
READERS = ("hard reader", "soft reader")


@dataclass(frozen=True, kw_only=True)
class Strings:
    """Strings of different lengths, with padding behind them."""

    bits: Int[Tensor, "string tokens"]
    there: Bool[Tensor, "string tokens"]

    @property
    def lead(self) -> Int[Tensor, " string"]:
        """Ones less zeros."""
        return ((2 * self.bits - 1) * self.there).sum(dim=1)

    @property
    def labels(self) -> Int[Tensor, " string"]:
        """Whether more than half of the bits are 1."""
        return (self.lead > 0).long()

    @property
    def clear(self) -> Bool[Tensor, " string"]:
        """Whether the lead is more than a fiftieth: as small as it gets in training."""
        return MEANS[0] * self.lead.abs() > self.there.sum(dim=1)


def draw_strings(n: int, mean: int, generator: torch.Generator) -> Strings:
    """Return strings of fair coins, of length Binomial(2 mean, 1/2) and at least one."""
    lengths = torch.randint(2, (n, 2 * mean), generator=generator).sum(dim=1).clamp_min(1)
    longest = int(lengths.max())
    bits = torch.randint(2, (n, longest), generator=generator)
    return Strings(bits=bits, there=torch.arange(longest) < lengths[:, None])


# --- models ----------------------------------------------------------------------------------


class Classifier(nn.Module):
    """A one-layer model of the lab that answers at a class token in front of the string."""

    def __init__(self, position: str) -> None:
        """Build the model."""
        super().__init__()
        self.model = OrbitForCausalLM(
            OrbitConfig(
                vocab_size=4,
                hidden_size=WIDTH,
                num_hidden_layers=1,
                num_attention_heads=2,
                max_position_embeddings=LONGEST,
                position=position,
                mask="full",
                use_cache=False,
            )
        )

    def forward(self, strings: Strings) -> Float[Tensor, " string"]:
        """Return the log-odds that a string has more ones.

        Where encodings are added to tokens, only the class token goes through the layer: its
        answer needs no other token's, and the layer would take five times as long.
        """
        padded = torch.where(strings.there, strings.bits, PADDING)
        inputs = torch.nn.functional.pad(padded, (1, 0), value=START)
        mask = torch.nn.functional.pad(strings.there, (1, 0), value=True)
        added = self.model.config.position in ENCODINGS
        logits = self.in_front(inputs, mask) if added else self.whole(inputs, mask)
        return logits[:, ONE] - logits[:, ZERO]

    def whole(
        self, inputs: Int[Tensor, "string tokens"], mask: Bool[Tensor, "string tokens"]
    ) -> Float[Tensor, "string vocabulary"]:
        """Return the logits of the class token by running the whole model."""
        targets = torch.full_like(inputs, IGNORED)
        targets[:, 0] = ZERO  # which logits are wanted; their loss is not used
        logits: Tensor = self.model(inputs, attention_mask=mask.long(), targets=targets).logits
        return logits

    def in_front(
        self, inputs: Int[Tensor, "string tokens"], mask: Bool[Tensor, "string tokens"]
    ) -> Float[Tensor, "string vocabulary"]:
        """Return the same logits from the class token's query alone."""
        stack = self.model.model
        x = stack.embed_tokens(inputs)
        if stack.embed_positions is not None:
            x = x + stack.embed_positions.weight[: x.shape[1]]
        block = stack.layers[0]
        maps = block.self_attn.qkv_proj.weight.chunk(3)
        seen = block.attn_norm(x)
        q, k, v = (
            (part @ w.T).unflatten(2, (block.self_attn.n_heads, -1)).transpose(1, 2)
            for part, w in zip((seen[:, :1], seen, seen), maps, strict=True)
        )
        mixed = torch.nn.functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask[:, None, None]
        )
        y = x[:, :1] + block.self_attn.o_proj(mixed.transpose(1, 2).flatten(2))
        y = y + block.mlp(block.mlp_norm(y))
        logits: Tensor = self.model.lm_head(stack.norm(y))
        return logits[:, 0]


class Recurrent(nn.Module):
    """An LSTM as a baseline: it can count."""

    def __init__(self) -> None:
        """Build the network."""
        super().__init__()
        self.embed = nn.Embedding(2, 8)
        self.lstm = nn.LSTM(8, WIDTH, batch_first=True)
        self.outer = nn.Linear(WIDTH, 1)

    def forward(self, strings: Strings) -> Float[Tensor, " string"]:
        """Return the log-odds that a string has more ones."""
        states, _ = self.lstm(self.embed(strings.bits))
        last = strings.there.sum(dim=1) - 1
        logits: Tensor = self.outer(states[torch.arange(len(last)), last])
        return logits[:, 0]


class Reading(nn.Module):
    """A reader with two heads, places of sines, and hard or soft attention."""

    def __init__(self, *, is_hard: bool) -> None:
        """Build the reader; hard ones are trained straight through."""
        super().__init__()
        self.reader = Reader(2, WIDTH, waves(LONGEST, WIDTH))
        self.is_hard = is_hard

    def forward(self, strings: Strings) -> Float[Tensor, " string"]:
        """Return the log-odds that a string has more ones."""
        select: Callable[[Tensor], Tensor] = softmax
        if self.is_hard:
            select = straight_through if self.training else hard
        logits: Tensor = self.reader(strings.bits, select, strings.there)
        return logits


def waves(length: int, width: int) -> Float[Tensor, "position d_model"]:
    """Return sines and cosines of places, from one a token to one in ten thousand."""
    angles = torch.arange(length)[:, None] * 10_000 ** (-torch.arange(0, width, 2) / width)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def build(name: str) -> nn.Module:
    """Return the model of that name."""
    if name in READERS:
        return Reading(is_hard=name == "hard reader")
    return Recurrent() if name == "LSTM" else Classifier(name)


# --- training --------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MajoritySetup:
    """One model to train and to test."""

    name: str
    steps: int
    batch: int
    tested: int  # strings for each mean length


def train_and_test(job: Job[MajoritySetup]) -> tuple[list[float], list[float]]:
    """Return the accuracy at each mean length after training, on all strings and on clear ones."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    with seeded(job.seed):
        model = build(setup.name).train()

    def loss_at(step: int) -> Tensor:
        strings = draw_strings(setup.batch, MEANS[0], generator)
        labels = strings.labels.float()
        return torch.nn.functional.binary_cross_entropy_with_logits(model(strings), labels)

    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(
        optimizer, start_factor=1.0, end_factor=0.05, total_iters=setup.steps
    )
    fit(loss_at, optimizer, steps=setup.steps, schedule=schedule)
    model.eval()
    pairs = [_accuracy(model, mean, setup.tested, generator) for mean in MEANS]
    return [of_all for of_all, _ in pairs], [of_clear for _, of_clear in pairs]


@torch.no_grad()
def _accuracy(
    model: nn.Module, mean: int, n: int, generator: torch.Generator
) -> tuple[float, float]:
    right, clear = [], []
    for _ in range(n // CHUNK):
        strings = draw_strings(CHUNK, mean, generator)
        right.append((model(strings) > 0).long() == strings.labels)
        clear.append(strings.clear)
    is_right, kept = torch.cat(right).double(), torch.cat(clear)
    return float(is_right.mean()), float(is_right[kept].mean())


Accuracies = dict[str, list[list[float]]]  # by model: of every seed, by mean length


def accuracies(bench: Bench) -> Accuracies:
    """Return accuracies on all strings."""
    return tested(bench)[0]


def tested(bench: Bench) -> tuple[Accuracies, Accuracies]:
    """Return accuracies on all strings and on clear ones."""

    def make() -> tuple[Accuracies, Accuracies]:
        names = (*ENCODINGS, *bench.pick((), (), ("rotary", "alibi")), *READERS, "LSTM")
        seeds = list(bench.seeds)[: bench.pick(1, 8, 8)]
        arms = {
            name: Arm(
                setup=MajoritySetup(
                    name=name,
                    steps=bench.pick(5, 800, 5000),
                    batch=bench.pick(16, 64, 128),
                    tested=bench.pick(100, 1000, 5000),
                ),
                seeds=[
                    bench.generator(f"majority {name}", seed).initial_seed() % 2**31
                    for seed in (seeds[:1] if name == "LSTM" else seeds)
                ],
            )
            for name in names
        }
        runs = run_arms(bench, train_and_test, arms)
        of_all, of_clear = (
            {name: [run[k] for run in rows] for name, rows in runs.items()} for k in (0, 1)
        )
        return of_all, of_clear

    return bench.once("majority, learned", make)


def _worst(rows: Sequence[Sequence[float]]) -> list[float]:
    return [min(row) for row in rows]


def _lost(rows: Sequence[Sequence[float]]) -> list[float]:
    return [row[0] - row[-1] for row in rows]


def generalises(bench: Bench) -> Outcome:
    """6a: least accuracy over lengths without encoding; control: a hard reader."""
    of_all, clear = tested(bench)
    data: dict[str, Any] = {"means": list(MEANS), "accuracies": of_all, "clear": clear}
    outcome = Outcome(
        result=estimate.mean(_worst(of_all["none"])),
        control=estimate.mean(_worst(of_all["hard reader"])),
        data=data,
    )
    return judged(bench, outcome)


def encoding_hurts(bench: Bench, *, encoding: str) -> Outcome:
    """6b, 6c: accuracy lost from mean length 50 to 250 with an encoding; control: without."""
    scores = accuracies(bench)
    outcome = Outcome(
        result=estimate.mean(_lost(scores[encoding])),
        control=estimate.mean(_lost(scores["none"])),
        data={"lost": {name: _lost(rows) for name, rows in scores.items()}},
    )
    return judged(bench, outcome)


def hard_fails(bench: Bench) -> Outcome:
    """6d: accuracy of hard readers at mean length 100; control: soft models without encoding."""
    scores = accuracies(bench)
    at = MEANS.index(100)
    outcome = Outcome(
        result=estimate.mean([row[at] for row in scores["hard reader"]]),
        control=estimate.mean([row[at] for row in scores["none"]]),
        data={"hard": scores["hard reader"], "soft": scores["soft reader"]},
    )
    return judged(bench, outcome)
