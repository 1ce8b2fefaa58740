"""One training run on the switching source: over letters or over tokens, in a chosen regime.

Enters: a job. Leaves: its losses by step, in nats a character, so that runs compare whatever their
tokens are. The model is the lab's, with the lab's switches.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from orbitlens.lab.fitting import fit, seeded
from orbitlens_papers.jobs import Job
from orbitlens_papers.tokenization.dictionaries import byte_pairs, characters
from orbitlens_papers.tokenization.source import closed, switching, text_of

RATE = 2e-3
BATCH = 8
SMALL = 0.02  # of the paper-like start: every weight N(0, 0.02²), embeddings tied
N_PAIRS = 10
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class LetterSetup:
    """What is trained: tokens, source, model, and for how long."""

    tokens: str = "letters"  # or "pairs": ten byte pairs
    order: int = 2
    width: int = 16
    layers: int = 1
    heads: int = 1
    start: str = "small"  # or "default": torch's own, embeddings not tied
    position: str = "learned"
    rate: float = RATE
    context: int = 512
    steps: int = 700
    look_every: int = 50
    stop_at: float = 10.0  # share of the gap closed at which a run may end; 10: never
    n_characters: int = 1_000_000
    n_judged: int = 64  # windows of the held-out text


def build_model(arm: LetterSetup, n_tokens: int) -> Any:  # noqa: ANN401 - of transformers
    """Return the arm's model, drawn from torch's global generator."""
    from orbitlens.orbit import OrbitConfig, OrbitForCausalLM

    is_small = arm.start == "small"
    config = OrbitConfig(
        vocab_size=n_tokens,
        hidden_size=arm.width,
        num_hidden_layers=arm.layers,
        num_attention_heads=arm.heads,
        max_position_embeddings=arm.context,
        position=arm.position,
        initializer_range=SMALL,
        tie_word_embeddings=is_small,
        use_cache=False,
    )
    model = OrbitForCausalLM(config)
    if not is_small:
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                module.reset_parameters()
    return model


def train(job: Job[LetterSetup]) -> Row:
    """Train, and return the held-out losses on the way."""
    arm, generator = job.setup, torch.Generator().manual_seed(job.seed)
    n = arm.n_characters
    symbols = switching(arm.order, n + n // 3, generator)
    text, other = text_of(symbols[:n]), text_of(symbols[n:])
    dictionary = characters() if arm.tokens == "letters" else byte_pairs(text, N_PAIRS)
    ids = torch.tensor(dictionary.encode(text))
    judged = _windows(torch.tensor(dictionary.encode(other)), arm)
    lengths = torch.tensor([len(token) for token in dictionary.tokens])
    with seeded(job.seed % 2**31):
        model = build_model(arm, len(dictionary))
    steps, losses = _train(model, arm, ids, lambda: held_out(model, judged, lengths), generator)
    return {
        "tokens": arm.tokens,
        "order": arm.order,
        "width": arm.width,
        "layers": arm.layers,
        "start": arm.start,
        "position": arm.position,
        "context": arm.context,
        "steps": steps,
        "losses": [round(loss, 5) for loss in losses],
        "length": float(lengths[judged].double().mean()),
    }


def _windows(ids: Int[Tensor, " any"], arm: LetterSetup) -> Int[Tensor, "windows tokens"]:
    """Return the held-out text in windows of the arm's context and one token more."""
    span = arm.context + 1
    n = min(arm.n_judged, len(ids) // span)
    return ids[: n * span].view(n, span)


@torch.no_grad()
def held_out(
    model: Any,  # noqa: ANN401 - of transformers
    windows: Int[Tensor, "windows tokens"],
    lengths: Int[Tensor, " vocabulary"],
) -> float:
    """Return the loss on windows of text, in nats a character."""
    nats, n = 0.0, 0
    for block in windows.split(16):
        wanted = block[:, 1:].contiguous()
        loss = model(input_ids=block[:, :-1].contiguous(), targets=wanted).loss
        nats += float(loss) * wanted.numel()
        n += int(lengths[wanted].sum())
    return nats / n


def _train(
    model: Any,  # noqa: ANN401
    arm: LetterSetup,
    ids: Tensor,
    held_out_loss: Callable[[], float],
    generator: torch.Generator,
) -> tuple[list[int], list[float]]:
    places = torch.arange(arm.context + 1)
    steps, losses = [0], [held_out_loss()]

    def loss_at(step: int) -> Tensor:
        starts = torch.randint(len(ids) - arm.context, (BATCH,), generator=generator)
        rows = ids[starts[:, None] + places]
        inputs, targets = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        loss: Tensor = model(input_ids=inputs, targets=targets).loss
        return loss

    def after(step: int) -> bool:
        if step % arm.look_every and step < arm.steps:
            return False
        steps.append(step)
        losses.append(held_out_loss())
        return closed(losses[-1]) >= arm.stop_at

    optimizer = torch.optim.AdamW(model.parameters(), lr=arm.rate, foreach=True)
    fit(loss_at, optimizer, steps=arm.steps, after=after)
    return steps, losses


def closed_by(row: Row, step: int) -> float:
    """Return the largest share of the gap that an arm closed by that step."""
    pairs = zip(row["steps"], row["losses"], strict=True)
    return max(closed(loss) for at, loss in pairs if at <= step)


def reached(row: Row, share: float) -> tuple[float, float]:
    """Return the last look before a run had closed a share of the gap, and the first after it.

    A run that never had: its last look, and infinity.
    """
    before = 0.0
    for step, loss in zip(row["steps"], row["losses"], strict=True):
        if closed(loss) >= share:
            return before, float(step)
        before = float(step)
    return before, math.inf


def ratio(slow: Row, quick: Row, share: float) -> tuple[float, float]:
    """Return the least and the largest ratio of steps that the looks at two runs allow.

    A slow run that never got there took at least all its steps; a quick one that never did leaves
    nothing but a ratio of at least 0. One that was there before training counts as one step.
    """
    (slow_before, slow_at), (quick_before, quick_at) = reached(slow, share), reached(quick, share)
    return slow_before / max(quick_at, 1.0), slow_at / (quick_before + 1)


def half_way(row: Row, most: int) -> int:
    """Return the step at which an arm had closed half of the gap; `most` if it never had."""
    for step, loss in zip(row["steps"], row["losses"], strict=True):
        if closed(loss) >= 0.5:
            return int(step)
    return most
