"""One training run: a small model of images, with or without what is tested, on a few labels.

Enters: a job. Leaves: its accuracy on other images, how much of its pixels tokens keep, and
what a figure needs. The model is the lab's. Jobs of one seed are a pair: same labelled images,
same batches, and the same first weights wherever both have them.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from orbitlens.lab.fitting import fit, rate_at, seeded
from orbitlens.orbit.moto import MoTo, over_tokens, patches_of
from orbitlens_papers.jobs import Job
from orbitlens_papers.vision_tokens.images import Digits, read_digits

RATE, DECAY, START = 2e-3, 0.05, 0.1
N_CLASSES = 10
LOOKS = (0.6, 0.8, 1.0)  # shares of the steps at which a part of the images is looked at
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ImageSetup:
    """What is trained, on what, and for how long."""

    stem: str = "patch"
    modulation: str = "none"
    token_prop: float = 0.0
    position: str = "learned"
    n_labels: int = 400
    shuffled: bool = False  # labels of the training images
    width: int = 32
    layers: int = 2
    heads: int = 4
    steps: int = 750
    batch: int = 32
    n_judged: int = 3000
    n_decoded: int = 500  # images a decoder is fitted on, and as many it is judged on; 0: none is
    pictures: bool = False  # whether the first run keeps a layout and spectra for figures
    file: str | None = None  # of MNIST


def build_model(arm: ImageSetup, data: Digits, seed: int = 0) -> Any:  # noqa: ANN401 - transformers
    """Return an untrained model."""
    from orbitlens.orbit import OrbitConfig, OrbitForImageClassification

    classes: dict[str, Any] = {"num_labels": N_CLASSES}  # a keyword that transformers takes
    config = OrbitConfig(
        image_size=data.side,
        patch_size=data.patch,
        hidden_size=arm.width,
        num_hidden_layers=arm.layers,
        num_attention_heads=arm.heads,
        position=arm.position,
        mask="full",
        stem=arm.stem,
        modulation=arm.modulation,
        token_prop=arm.token_prop,
        initializer_range=START,
        use_cache=False,
        **classes,
    )
    with seeded(seed % 2**31):
        return OrbitForImageClassification(config)


def train_and_judge(job: Job[ImageSetup]) -> Row:
    """Train one model and judge it on other images."""
    arm, data = job.setup, read_digits(job.setup.file)
    generator = torch.Generator().manual_seed(job.seed)
    chosen = torch.randperm(len(data.pool), generator=generator)[: arm.n_labels]
    images, labels = data.pool[chosen], data.pool_labels[chosen]
    mixed = labels[torch.randperm(len(labels), generator=generator)]
    model = build_model(arm, data, job.seed)
    looks, loss = _train(model, job, (images, mixed if arm.shuffled else labels), data)
    last = judge(model, data.judged[: arm.n_judged], data.judged_labels)
    row: Row = {
        "number": job.seed,
        "n_labels": len(labels),
        "accuracy": last["accuracy"],
        "by_others": last["by_others"],
        "looks": looks,
        "loss": round(loss, 5),  # of the last tenth of training
        "parameters": sum(p.numel() for p in model.parameters()),
        **(decoded(model, job, data) if arm.n_decoded else {}),
    }
    return row | (pictures(model, data) if arm.pictures and job.index == 0 else {})


def _train(
    model: Any,  # noqa: ANN401
    job: Job[ImageSetup],
    labelled: tuple[Tensor, Tensor],
    data: Digits,
) -> tuple[list[float], float]:
    """Return accuracies at a few steps, and the mean loss of the last tenth of them."""
    images, labels = labelled
    steps, n_judged = job.setup.steps, job.setup.n_judged
    generator = torch.Generator().manual_seed(job.seed)
    stops = {max(1, round(share * steps)) for share in LOOKS}
    looks: list[float] = []
    losses: list[Tensor] = []

    def loss_at(step: int) -> Tensor:
        batch = torch.randint(len(images), (job.setup.batch,), generator=generator)
        loss = label_loss(model, images[batch], labels[batch])
        losses.append(loss.detach())
        return loss + model.extra_loss()

    def after(step: int) -> None:
        if step in stops:
            score = judge(model, data.judged[: n_judged // 5], data.judged_labels)
            looks.append(score["accuracy"])

    fit(
        loss_at,
        torch.optim.AdamW(model.train().parameters(), lr=RATE, weight_decay=DECAY, fused=True),
        steps=steps,
        schedule=lambda step: rate_at(step + 1, peak=RATE, steps=steps, warmup=max(1, steps // 10)),
        clip=1.0,
        after=after,
    )
    return looks, float(torch.stack(losses[-max(1, steps // 10) :]).mean())


def label_loss(
    model: Any,  # noqa: ANN401
    images: Float[Tensor, "batch channel y x"],
    labels: Int[Tensor, " batch"],
) -> Float[Tensor, ""]:
    """Return the cross-entropy of the labels."""
    loss: Tensor = model(pixel_values=images, labels=labels).loss
    return loss


@torch.no_grad()
def judge(
    model: Any,  # noqa: ANN401
    images: Float[Tensor, "image channel y x"],
    labels: Int[Tensor, " all"],
) -> dict[str, float]:
    """Return the share of right answers, and that by the labels of other images.

    The latter is the mean over all ways to hand the same labels out: what a model gets by guessing
    classes as often as it does.
    """
    model.eval()
    predicted = torch.cat([model(pixel_values=x).logits.argmax(dim=1) for x in images.split(512)])
    model.train()
    labels = labels[: len(images)]
    guessed, true = (
        torch.bincount(x, minlength=N_CLASSES).double() / len(x) for x in (predicted, labels)
    )
    return {
        "accuracy": float((predicted == labels).double().mean()),
        "by_others": float((guessed * true).sum()),
    }


# --- what tokens keep of their pixels --------------------------------------------------------


@torch.no_grad()
def decoded(model: Any, job: Job[ImageSetup], data: Digits) -> Row:  # noqa: ANN401
    """Return R^2 of patches read off tokens by a linear map, on other images.

    Also where tokens are those of other patches.
    """
    tokenizer = model.model.embed_patches
    parts = [x[: job.setup.n_decoded] for x in (data.pool, data.judged)]
    seen, other = (
        (
            tokenizer.tokens(x).double().flatten(0, 1),
            patches_of(x, data.patch).double().flatten(0, 1),
        )
        for x in parts
    )
    generator = torch.Generator().manual_seed(job.seed)
    order = torch.randperm(len(seen[0]), generator=generator)
    return {
        "r2": linear_r2(*seen, *other),
        "r2_others": linear_r2(seen[0][order], seen[1], *other),
    }


def linear_r2(
    tokens: Float[Tensor, "rows d_model"],
    pixels: Float[Tensor, "rows pixels"],
    other_tokens: Float[Tensor, "other d_model"],
    other_pixels: Float[Tensor, "other pixels"],
) -> float:
    """Return the held-out R^2 of pixels read linearly off tokens, over all pixels together.

    Fitted by least squares with an intercept on the first pair, judged on the second.
    """
    ones = torch.ones(len(tokens), 1, dtype=tokens.dtype)
    fit = torch.linalg.lstsq(torch.cat([tokens, ones], 1), pixels, driver="gelsd").solution
    left = other_pixels - other_tokens @ fit[:-1] - fit[-1]
    spread = other_pixels - other_pixels.mean(dim=0)
    return float(1 - left.square().sum() / spread.square().sum())


# --- for figures -----------------------------------------------------------------------------


@torch.no_grad()
def pictures(model: Any, data: Digits) -> Row:  # noqa: ANN401
    """Return one image with its layout, and spectra of tokens before and behind the modulation."""
    tokenizer = model.model.embed_patches
    before, behind = tokenizer.plain_tokens(data.judged[:256]), tokenizer.tokens(data.judged[:256])
    row: Row = {
        "spectra": {
            "tokens": spectrum(before),
            "normalised over tokens": spectrum(over_tokens(before)),
            "modulated": spectrum(behind),
        }
    }
    if isinstance(tokenizer.modulation, MoTo):
        n = data.side // data.patch
        layout = tokenizer.modulation.layout(before[:1])[0].T.unflatten(1, (n, n))
        row["image"] = _rounded(data.judged[0, 0])
        row["layout"] = [_rounded(region) for region in layout]
    return row


def spectrum(tokens: Float[Tensor, "batch tokens d_model"]) -> list[float]:
    """Return the eigenvalues of the tokens' covariance over images and places, largest first."""
    rows = tokens.double().flatten(0, 1)
    values = torch.linalg.eigvalsh(torch.cov(rows.T)).flip(0).clamp(min=0)
    return [float(f"{value:.4g}") for value in values.tolist()]


def _rounded(table: Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in table.tolist()]
