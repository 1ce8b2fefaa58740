"""Claim 2e, run at full scale and else timed: a decoder over single tokens, picture, label, ...

Enters: a bench. Leaves: an outcome. The model is the lab's, with plastic attention; nothing says
that labels are values and pictures are keys, so two layers have to find it. It is asked for the
label at every picture, and judged at the last.
"""

import time
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from orbitlens.lab.fitting import fit, seeded
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.claim import Outcome
from orbitlens_papers.jobs import Job
from orbitlens_papers.on_chip.episodes import (
    N_LABELS,
    Episodes,
    Split,
    draw,
    relabelled,
    training_of,
)
from orbitlens_papers.on_chip.judging import MANY, WAY
from orbitlens_papers.on_chip.model import WIDTH, Encoder, among
from orbitlens_papers.on_chip.training import Classes, arm_of, classes_of, source

RATE = 1e-3
STEPS = 20_000
N_JUDGED = 500  # episodes
WARMING, TIMED = 2, 20  # steps, where only their time is looked at


@dataclass(frozen=True, kw_only=True)
class DecoderSetup:
    """How long, and on how much at a time; the index of a job says which classes are held out."""

    classes: Classes
    steps: int = STEPS
    episodes: int = 16
    layers: int = 2
    heads: int = 4


class Decoder(nn.Module):
    """Encoder and label embeddings in front of a causal stack with plastic attention."""

    def __init__(self, setup: DecoderSetup) -> None:
        """Make the stack."""
        super().__init__()
        from orbitlens.orbit import OrbitConfig, OrbitModel

        self.encoder = Encoder()
        self.labels = nn.Embedding(N_LABELS, WIDTH)
        self.stack = OrbitModel(
            OrbitConfig(
                hidden_size=WIDTH,
                num_hidden_layers=setup.layers,
                num_attention_heads=setup.heads,
                max_position_embeddings=2 * (WAY * MANY + 1),
                attention="plastic",
                initializer_range=0.1,
                use_cache=False,
            )
        )
        self.readout = nn.Linear(WIDTH, N_LABELS)

    def forward(
        self,
        pictures: Float[Tensor, "episodes pictures size size"],
        labels: Int[Tensor, "episodes pictures"],
    ) -> Float[Tensor, "episodes pictures labels"]:
        """Return logits at every picture, from all pictures and labels before it."""
        pairs = torch.stack([self.encoder(pictures), self.labels(labels)], dim=2)
        states = self.stack(inputs_embeds=pairs.flatten(1, 2)).last_hidden_state
        logits: Tensor = self.readout(states[:, ::2])
        return logits


def with_query(episodes: Episodes) -> tuple[Tensor, Tensor]:
    """Return rows and labels of contexts with one query behind each, its label last."""
    rows = torch.cat([episodes.context, episodes.queries[:, :1]], dim=1)
    return rows, torch.cat([episodes.labels, episodes.answers[:, :1]], dim=1)


def train_decoder(job: Job[DecoderSetup]) -> dict[str, Any]:
    """Train one decoder and judge it on held-out classes; returns plain numbers."""
    generator = torch.Generator().manual_seed(job.seed)
    parts = job.setup.classes.split(job.index)
    with seeded(job.seed):
        decoder = Decoder(job.setup)
    losses = _train(decoder, parts, job.setup, generator)
    curve = {"losses": losses[:: max(1, len(losses) // 100)]}
    return curve | _judged(decoder.eval(), parts, generator)


def _train(
    decoder: Decoder, parts: Split, setup: DecoderSetup, generator: torch.Generator
) -> list[float]:
    training = training_of(parts, MANY)

    def loss_at(step: int) -> Tensor:
        episodes = draw(generator, n=setup.episodes, way=WAY, shots=MANY, of=training.size)
        rows, labels = with_query(episodes)
        logits = decoder(training.shown(rows, generator), labels)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    optimizer = torch.optim.Adam(decoder.parameters(), lr=RATE, foreach=True)
    losses: list[float] = fit(loss_at, optimizer, steps=setup.steps, clip=1.0).tolist()
    return losses


@torch.no_grad()
def _judged(decoder: Decoder, parts: Split, generator: torch.Generator) -> dict[str, float]:
    flat = parts.held.flatten(0, 1)
    size = (parts.held.shape[0], parts.held.shape[1])
    episodes = draw(generator, n=N_JUDGED, way=WAY, shots=MANY, of=size)
    accuracies = {}
    for name, shown in (("true", episodes), ("random", relabelled(episodes, generator))):
        rows, labels = with_query(shown)
        parts_of = zip(rows.split(50), labels.split(50), strict=True)
        logits = torch.cat([decoder(flat[r], y)[:, -1:] for r, y in parts_of])
        right = among(logits, shown.used).argmax(dim=-1)[:, 0] == 0
        accuracies[name] = float(right.double().mean())
    return accuracies


def seconds_a_step(job: Job[DecoderSetup]) -> float:
    """Return the processor time of a training step, after some that only warm up."""
    generator = torch.Generator().manual_seed(job.seed)
    parts = job.setup.classes.split(job.index)
    with seeded(job.seed):
        decoder = Decoder(job.setup)
    _train(decoder, parts, replace(job.setup, steps=WARMING), generator)
    started = time.process_time()
    _train(decoder, parts, job.setup, generator)
    return (time.process_time() - started) / job.setup.steps


def decoder_learns(bench: Bench) -> Outcome:
    """2e: accuracy at the last picture; control: labels at random."""
    arm = arm_of(bench, "decoder", DecoderSetup(classes=classes_of(bench)))
    if bench.scale is not Scale.FULL:
        job = replace(arm.jobs[0], setup=replace(arm.setup, steps=bench.pick(1, TIMED, TIMED)))
        seconds = seconds_a_step(job)
        hours = STEPS * seconds / 3600
        return Outcome(
            obstacle=f"{STEPS:,} steps a seed at {seconds:.2f} s of one core a step, timed over "
            f"{job.setup.steps} steps on the machine of this run, are {hours:.1f} hours, and "
            f"{hours * len(arm.seeds):.0f} for {len(arm.seeds)} folds; the default scale has "
            "minutes. Run --scale full",
            data={"seconds a step": seconds, **source(bench)},
        )
    rows = bench.map(train_decoder, arm.jobs)
    return Outcome(
        result=estimate.mean([row["true"] for row in rows]),
        control=estimate.mean([row["random"] for row in rows]),
        data={"runs": rows, **source(bench)},
    )
