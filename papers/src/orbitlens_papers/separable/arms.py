"""One training run on pictures of sounds: separable or joint attention, a CNN, or no depth at all.

Enters: a `Job`: an arm, clips to train and to judge, a seed. Leaves: its accuracy, its cost, and
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

from orbitlens.errors import MissingPackageError, TrainingError
from orbitlens_papers.separable.groups import silence_positions, time_defect
from orbitlens_papers.separable.sound import ENVELOPES, N_CLASSES

INIT = 0.2  # deviation of first weights
WARMUP = 0.1  # of all steps
BLOCK = 128  # clips judged at once
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Arm:
    """What is trained, and for how long."""

    kind: str = "separable"  # or "joint", "cnn", "logistic"
    axes: str = "columns-rows"
    patch: int = 1
    width: int = 32
    heads: int = 4
    layers: int = 4
    steps: int = 600
    batch: int = 16
    rate: float = 6e-3
    shuffled: bool = False  # labels of the clips to train on
    n_looks: int = 4  # at the clips to judge


@dataclass(frozen=True, kw_only=True)
class Split:
    """Clips to train on and clips to judge on."""

    train: Float[Tensor, "clips height width"] = field(repr=False)
    labels: Int[Tensor, " clips"] = field(repr=False)
    test: Float[Tensor, "judged height width"] = field(repr=False)
    wanted: Int[Tensor, " judged"] = field(repr=False)
    n_classes: int


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run."""

    arm: Arm
    split: Split
    seed: int
    shows: bool = False  # whether the trained model is looked into


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


def build(arm: Arm, split: Split) -> Any:  # noqa: ANN401 - of transformers, or a small CNN
    """Return an arm's model, drawn from torch's global generator."""
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


def run_job(job: Job) -> Row:
    """Train and judge; a top-level function, so that processes can be given it."""
    from orbitlens.running.loading import quiet_transformers

    quiet_transformers()
    generator = torch.Generator().manual_seed(job.seed)
    labels = job.split.labels
    if job.arm.shuffled:
        labels = labels[torch.randperm(len(labels), generator=generator)]
    if job.arm.kind == "logistic":
        return _logistic(job, labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed % 2**31)
        model = build(job.arm, job.split)
    started = time.process_time()
    curve = _train(model, job, labels, generator)
    row = _judged(job, _predicted(model, job.split.test))
    row |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "seconds": time.process_time() - started,
        "curve": curve,
    }
    return row | (looked_into(model, job) if job.shows else {})


def rate_at(arm: Arm, step: int) -> float:
    """Return the learning rate: up in a line, down in half a line, as one cycle does."""
    done, up = (step + 1) / arm.steps, WARMUP
    return arm.rate * (done / up if done < up else max(0.0, (1 - done) / (1 - up)))


def _train(model: Any, job: Job, labels: Tensor, generator: torch.Generator) -> list[list[float]]:  # noqa: ANN401
    arm, split = job.arm, job.split
    optimizer = torch.optim.AdamW(model.parameters(), lr=arm.rate, betas=(0.9, 0.98), fused=True)
    curve: list[list[float]] = []
    every = max(1, arm.steps // arm.n_looks)
    for step in range(arm.steps):
        chosen = torch.randint(len(labels), (arm.batch,), generator=generator)
        loss = functional.cross_entropy(
            model(pixel_values=split.train[chosen][:, None]).logits, labels[chosen]
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(arm, step)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % every == 0:
            if not torch.isfinite(loss):
                raise TrainingError(f"{arm}: the loss at step {step} is not a number.")
            right = (_predicted(model, split.test) == split.wanted).double().mean()
            curve.append([float(step + 1), float(right), float(loss.detach())])
    return curve


@torch.no_grad()
def _predicted(model: Any, pictures: Tensor) -> Int[Tensor, " clips"]:  # noqa: ANN401
    parts = [model(pixel_values=part[:, None]).logits for part in pictures.split(BLOCK)]
    return torch.cat(parts).argmax(dim=-1)


def _judged(job: Job, predicted: Int[Tensor, " clips"]) -> Row:
    wanted, n = job.split.wanted, len(ENVELOPES)
    row: Row = {"accuracy": float((predicted == wanted).double().mean())}
    if job.split.n_classes == N_CLASSES:  # made sounds: each factor by itself
        row["pattern"] = float((predicted // n == wanted // n).double().mean())
        row["envelope"] = float((predicted % n == wanted % n).double().mean())
    return row


def _logistic(job: Job, labels: Tensor) -> Row:
    """Fit the linear model of all bins: what needs no depth."""
    try:
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingPackageError(
            "logistic regression needs scikit-learn: pip install 'orbitlens[studies]'"
        ) from error
    started = time.process_time()
    # Neighbouring bins say much the same: a firm penalty, chosen beforehand and not searched for.
    fitted = LogisticRegression(C=0.03, max_iter=500).fit(
        job.split.train.flatten(1).numpy(), labels.numpy()
    )
    predicted = torch.from_numpy(fitted.predict(job.split.test.flatten(1).numpy()))
    return _judged(job, predicted) | {
        "parameters": int(fitted.coef_.size + fitted.intercept_.size),
        "seconds": time.process_time() - started,
        "curve": [],
    }


@torch.no_grad()
def looked_into(model: Any, job: Job) -> Row:  # noqa: ANN401 - of the lab
    """Return the symmetry of a trained model, and where its class token looks in one clip."""
    exact = copy.deepcopy(model).double().eval().requires_grad_(False)
    clip = job.split.test[0].double()
    seen = exact(pixel_values=clip[None, None], output_attentions=True)
    maps = [
        pattern[0, :, 0, 1:].mean(dim=0).view(clip.shape).tolist() for pattern in seen.attentions
    ]
    with_places = time_defect(exact, clip, job.seed % 2**31)
    without = time_defect(silence_positions(exact, "rows"), clip, job.seed % 2**31)
    return {
        "symmetry": {"with": with_places, "without": without},
        "clip": clip.tolist(),
        "maps": maps,
        "label": int(job.split.wanted[0]),
        "said": int(seen.logits.argmax()),
    }
