"""One training run on pictures of sounds: separable or joint attention, a CNN, or no depth at all.

Enters: a job: a model, clips to train and to judge, a seed. Leaves: its accuracy, its cost, and
where asked what the trained model looks at. The transformers are the lab's, with its switches.
"""

import copy
import time
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from orbitlens.errors import MissingPackageError
from orbitlens.lab.fitting import fit, rate_at, seeded
from orbitlens_papers.jobs import Job
from orbitlens_papers.separable.groups import silence_positions, time_defect
from orbitlens_papers.separable.sound import ENVELOPES, N_CLASSES

INIT = 0.2  # deviation of first weights
WARMUP = 0.1  # of all steps
BLOCK = 128  # clips judged at once
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Split:
    """Clips to train on and clips to judge on."""

    train: Float[Tensor, "clips height width"] = field(repr=False)
    labels: Int[Tensor, " clips"] = field(repr=False)
    test: Float[Tensor, "judged height width"] = field(repr=False)
    wanted: Int[Tensor, " judged"] = field(repr=False)
    n_classes: int
    # Clips to train on as other voices would say them, in order of the factor of frequency.
    voices: Float[Tensor, "clips voices height width"] | None = field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class SoundSetup:
    """What is trained, on which clips, and for how long."""

    split: Split = field(repr=False)
    kind: str = "separable"  # or "joint", "cnn", "logistic"
    axes: str = "columns-rows"
    patch: int = 1
    width: int = 32
    heads: int = 4
    layers: int = 4
    steps: int = 600
    batch: int = 16
    rate: float = 6e-3
    decay: float = 0.01  # of weights
    revoiced: bool = False  # whether each clip is of a voice drawn anew, where the split has some
    mixed: bool = False  # whether each clip is mixed with another one, and their labels with them
    shuffled: bool = False  # labels of the clips to train on
    n_looks: int = 4  # at the clips to judge
    shows: bool = False  # whether the trained model of the first seed is looked into


class SmallCnn(nn.Module):
    """Three convolutions, a mean over places, a map to classes; called as the lab's models are."""

    def __init__(self, width: int, n_classes: int) -> None:
        """Make the maps."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width // 2, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(width // 2, width, 3, padding=1, stride=2),
            nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, padding=1),
            nn.ReLU(),
        )
        self.classifier = nn.Linear(2 * width, n_classes)

    def forward(self, pixel_values: Float[Tensor, "batch 1 height width"]) -> Any:  # noqa: ANN401
        """Return logits, under that name."""
        from transformers.modeling_outputs import ImageClassifierOutput

        seen: Any = self.classifier(self.body(pixel_values).mean(dim=(2, 3)))
        return ImageClassifierOutput(logits=seen)


def build(arm: SoundSetup) -> Any:  # noqa: ANN401 - of transformers, or a small CNN
    """Return a model, drawn from torch's global generator."""
    split = arm.split
    if arm.kind == "cnn":
        return SmallCnn(arm.width, split.n_classes)
    from orbitlens.orbit import OrbitConfig, OrbitForImageClassification

    is_separable = arm.kind == "separable"
    switches: dict[str, Any] = {
        "attention": "separable" if is_separable else "softmax",
        "axes": arm.axes if is_separable else "columns-rows",
        "image_size": list(split.train.shape[1:]),
        "patch_size": arm.patch,
        "hidden_size": arm.width,
        "num_attention_heads": arm.heads,
        "num_hidden_layers": arm.layers,
        "intermediate_size": 2 * arm.width,
        "initializer_range": INIT,
        "mask": "full",
        "num_labels": split.n_classes,
    }
    return OrbitForImageClassification(OrbitConfig(**switches))


def train_and_judge(job: Job[SoundSetup]) -> Row:
    """Train one model and judge it on other clips."""
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    labels = setup.split.labels
    if setup.shuffled:
        labels = labels[torch.randperm(len(labels), generator=generator)]
    if setup.kind == "logistic":
        return _logistic(setup.split, labels)
    with seeded(job.seed % 2**31):
        model = build(setup)
    started = time.process_time()
    curve = _train(model, setup, labels, generator)
    row = _judged(setup.split, _predicted(model, setup.split.test))
    row |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": time.process_time() - started,
        "curve": curve,
    }
    return row | (looked_into(model, job) if setup.shows and job.index == 0 else {})


def rate(setup: SoundSetup, step: int) -> float:
    """Return the learning rate of a step: up in a line, down in another."""
    steps = setup.steps
    return rate_at(step + 1, peak=setup.rate, steps=steps, warmup=WARMUP * steps, shape="linear")


def _train(
    model: Any,  # noqa: ANN401
    setup: SoundSetup,
    labels: Tensor,
    generator: torch.Generator,
) -> list[list[float]]:
    split, every = setup.split, max(1, setup.steps // setup.n_looks)
    curve: list[list[float]] = []
    losses: list[Tensor] = []

    def loss_at(step: int) -> Tensor:
        chosen = torch.randint(len(labels), (setup.batch,), generator=generator)
        clips, wanted = split.train[chosen], labels[chosen]
        if setup.revoiced and split.voices is not None:
            clips = between_voices(split.voices[chosen], generator)
        if setup.mixed:
            classes = functional.one_hot(wanted, split.n_classes).float()
            clips, wanted = mixed(clips, classes, generator)
        logits = model(pixel_values=clips[:, None]).logits
        loss = functional.cross_entropy(logits, wanted)
        losses.append(loss.detach())
        return loss

    def after(step: int) -> None:
        if step % every == 0:
            right = (_predicted(model, split.test) == split.wanted).double().mean()
            curve.append([float(step), float(right), float(losses[-1])])

    fit(
        loss_at,
        torch.optim.AdamW(
            model.parameters(),
            lr=setup.rate,
            betas=(0.9, 0.98),
            weight_decay=setup.decay,
            fused=True,
        ),
        steps=setup.steps,
        schedule=lambda step: rate(setup, step),
        clip=1.0,
        after=after,
    )
    return curve


def between_voices(
    voices: Float[Tensor, "clips voices height width"], generator: torch.Generator
) -> Float[Tensor, "clips height width"]:
    """Return each clip at a place drawn evenly along its voices, between the two next to it."""
    n = voices.shape[1]
    place = torch.rand(len(voices), generator=generator) * (n - 1)
    lower, clip = place.long().clamp(max=n - 2), torch.arange(len(voices))
    share = (place - lower)[:, None, None]
    return voices[clip, lower].lerp(voices[clip, lower + 1], share)


def mixed(
    clips: Float[Tensor, "clips height width"],
    wanted: Float[Tensor, "clips classes"],
    generator: torch.Generator,
) -> tuple[Float[Tensor, "clips height width"], Float[Tensor, "clips classes"]]:
    """Return mixtures of each clip with the one before it, and of their labels (arXiv 1710.09412).

    A clip keeps half of its own at least.
    """
    own = 1 - 0.5 * torch.rand(len(clips), 1, generator=generator)
    both = own[:, :, None] * clips + (1 - own)[:, :, None] * clips.roll(1, dims=0)
    return both, own * wanted + (1 - own) * wanted.roll(1, dims=0)


@torch.no_grad()
def _predicted(model: Any, pictures: Tensor) -> Int[Tensor, " clips"]:  # noqa: ANN401
    parts = [model(pixel_values=part[:, None]).logits for part in pictures.split(BLOCK)]
    return torch.cat(parts).argmax(dim=-1)


def _judged(split: Split, predicted: Int[Tensor, " clips"]) -> Row:
    wanted, n = split.wanted, len(ENVELOPES)
    row: Row = {"accuracy": float((predicted == wanted).double().mean())}
    if split.n_classes == N_CLASSES:  # made sounds: each factor by itself
        row["pattern"] = float((predicted // n == wanted // n).double().mean())
        row["envelope"] = float((predicted % n == wanted % n).double().mean())
    return row


def _logistic(split: Split, labels: Tensor) -> Row:
    """Fit the linear model of all bins: what needs no depth."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingPackageError(
            "logistic regression needs scikit-learn: pip install scikit-learn"
        ) from error
    started = time.process_time()
    # Neighbouring bins say much the same: a firm penalty, chosen beforehand and not searched for.
    fitted = LogisticRegression(C=0.03, max_iter=500).fit(
        split.train.flatten(1).numpy(), labels.numpy()
    )
    predicted = torch.from_numpy(fitted.predict(split.test.flatten(1).numpy()))
    return _judged(split, predicted) | {
        "parameters": int(fitted.coef_.size + fitted.intercept_.size),
        "seconds": time.process_time() - started,
        "curve": [],
    }


@torch.no_grad()
def looked_into(model: Any, job: Job[SoundSetup]) -> Row:  # noqa: ANN401 - of the lab
    """Return the symmetry of a trained model, and where its class token looks in one clip."""
    exact = copy.deepcopy(model).double().eval().requires_grad_(False)
    split = job.setup.split
    clip = split.test[0].double()
    seen = exact(pixel_values=clip[None, None], output_attentions=True)
    grid = [side // job.setup.patch for side in clip.shape]
    maps = [pattern[0, :, 0, 1:].mean(dim=0).view(grid).tolist() for pattern in seen.attentions]
    return {
        **_symmetry(exact, clip, job),
        "clip": clip.tolist(),
        "maps": maps,
        "label": int(split.wanted[0]),
        "predicted": int(seen.logits.argmax()),
    }


def _symmetry(model: Any, clip: Tensor, job: Job[SoundSetup]) -> Row:  # noqa: ANN401
    """Return what permuted columns change; with tokens of several bins they are not a symmetry."""
    if job.setup.patch > 1:
        return {}
    with_places = time_defect(model, clip, job.seed % 2**31)
    without = time_defect(silence_positions(model, "rows"), clip, job.seed % 2**31)
    return {"symmetry": {"with": with_places, "without": without}}
