"""Claims 1, 2a, 2c, 4c and 6: what follows from formulas and counts, without training.

Enters: a bench. Leaves: outcomes. In float64, with every map drawn: at the start of training the
modulation is zero, and everything would hold for nothing.
"""

import math
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitlens.lab.fitting import seeded
from orbitlens.orbit.moto import MoTo, patches_of
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.vision_tokens.gains import BOTH, data_of, plain_setup
from orbitlens_papers.vision_tokens.images import Digits
from orbitlens_papers.vision_tokens.training import ImageSetup, build_model, linear_r2

N_TOKENS, WIDTH = 16, 32
SMALL_S: dict[str, Any] = {  # DeiT-S, as generally known
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "num_labels": 1000,
    "hidden_size": 384,
    "num_attention_heads": 6,
    "bias": True,
    "mask": "full",
}
OUT_OF_REACH = (
    "the formulas of MoTo and TokenProp could be found neither in public code nor in the abstract, "
    "the only part of the paper at hand, and ImageNet is out of reach"
)


def drawn_moto(generator: torch.Generator, **options: Any) -> MoTo:  # noqa: ANN401
    """Return a MoTo in float64 with all of its maps drawn."""
    with seeded(generator.initial_seed() % 2**31):  # a fixed layout is drawn by torch itself
        moto = MoTo(WIDTH, **options).double()
    for parameter in moto.parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = noise / math.sqrt(WIDTH)
    return moto


def drawn_tokens(generator: torch.Generator) -> Float[Tensor, "batch tokens d_model"]:
    """Return random tokens of a few images."""
    return torch.randn(4, N_TOKENS, WIDTH, generator=generator, dtype=torch.float64)


@torch.no_grad()
def order_error(layer: nn.Module, generator: torch.Generator) -> float:
    """Return how far a layer is from commuting with a permutation of tokens, relative to it."""
    x, order = drawn_tokens(generator), torch.randperm(N_TOKENS, generator=generator)
    out = layer(x)
    return float((layer(x[:, order]) - out[:, order]).abs().max() / out.abs().max())


@torch.no_grad()
def reach(layer: nn.Module, generator: torch.Generator) -> float:
    """Return how far another token moves at least when one is replaced, relative to tokens."""
    x = drawn_tokens(generator)
    changed = x.clone()
    changed[:, 0] = torch.randn(4, WIDTH, generator=generator, dtype=torch.float64)
    moved = (layer(changed) - layer(x))[:, 1:].norm(dim=-1)
    return float(moved.min() / x.norm(dim=-1).mean())


def _over_seeds(bench: Bench, measure: Any, make: Any, name: str) -> list[float]:  # noqa: ANN401
    rows = []
    for seed in bench.seeds:
        generator = bench.generator(name, seed)
        rows.append(measure(make(generator), generator))
    return rows


def keeps_order(bench: Bench) -> Outcome:
    """1a: distance from equivariance, both forms; control: a layout drawn for each place."""

    def errors(**options: Any) -> list[float]:  # noqa: ANN401
        makes = [partial(drawn_moto, replaces=form, **options) for form in (False, True)]
        return [x for make in makes for x in _over_seeds(bench, order_error, make, "order")]

    return Outcome(
        result=estimate.largest(errors(), of="seeds and forms"),
        control=estimate.smallest(errors(n_fixed=N_TOKENS), of="seeds and forms"),
    )


def couples_tokens(bench: Bench) -> Outcome:
    """1b: least movement of other tokens; control: LayerNorm, which acts token by token."""
    norm = nn.LayerNorm(WIDTH, dtype=torch.float64)
    return Outcome(
        result=estimate.smallest(_over_seeds(bench, reach, drawn_moto, "reach"), of="seeds"),
        control=estimate.largest(_over_seeds(bench, reach, lambda g: norm, "reach"), of="seeds"),
    )


@torch.no_grad()
def _logits(setup: ImageSetup, data: Digits, seed: int, images: Tensor) -> Tensor:
    logits: Tensor = build_model(setup, data, seed).double().eval()(pixel_values=images).logits
    return logits


def starts_as_nothing(bench: Bench) -> Outcome:
    """1c: change of the answers at the start; control: the form that replaces tokens."""
    data = data_of(bench)
    images = data.judged[:16].double()
    changes: dict[str, list[float]] = {"moto": [], "moto-replace": []}
    for seed in bench.seeds:
        plain = _logits(plain_setup(bench), data, seed, images)
        for name, rows in changes.items():
            setup = plain_setup(bench, modulation=name)
            rows.append(float((_logits(setup, data, seed, images) - plain).abs().max()))
    return Outcome(
        result=estimate.largest(changes["moto"], of="seeds"),
        control=estimate.smallest(changes["moto-replace"], of="seeds"),
        data={"source": data.source},
    )


def order_is_invisible(bench: Bench) -> Outcome:
    """1d: change of answers when patches are shuffled, no positions; control: a conv stem."""
    data = data_of(bench)
    changes: dict[str, list[float]] = {"patch": [], "conv": []}
    for seed in bench.seeds:
        for stem, rows in changes.items():
            setup = plain_setup(bench, position="none", stem=stem, modulation="moto")
            model = build_model(setup, data, seed).double().eval()
            rows.append(_shuffle_error(model, data, bench.generator("patches", seed)))
    return Outcome(
        result=estimate.largest(changes["patch"], of="seeds"),
        control=estimate.smallest(changes["conv"], of="seeds"),
        data={"source": data.source},
    )


@torch.no_grad()
def _shuffle_error(model: Any, data: Digits, generator: torch.Generator) -> float:  # noqa: ANN401
    """Return the largest change of answers when an image's patches change places."""
    moto = model.model.embed_patches.modulation
    for parameter in (moto.w_modulation, moto.b_modulation):
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        parameter.data = noise / math.sqrt(model.config.hidden_size)
    images = data.judged[:16].double()
    patches = patches_of(images, data.patch)
    order = torch.randperm(patches.shape[1], generator=generator)
    shuffled = nn.functional.fold(
        patches[:, order].mT, images.shape[-1], data.patch, stride=data.patch
    )
    change = model(pixel_values=shuffled).logits - model(pixel_values=images).logits
    return float(change.abs().max())


# --- counts ----------------------------------------------------------------------------------


def _counted(value: float, what: str) -> Estimate:
    return Estimate(value=value, low=value, high=value, n=1, how=what)


def n_parameters(model: nn.Module) -> int:
    """Return how many numbers a model learns."""
    return sum(p.numel() for p in model.parameters())


def few_parameters(bench: Bench) -> Outcome:
    """2a: parameters that both designs add, as a share; control: twice the layers."""
    data, sizes = data_of(bench), {"width": WIDTH, "layers": 2}
    counts = {
        name: n_parameters(build_model(arm, data))
        for name, arm in {
            "plain": plain_setup(bench, **sizes),
            "both": plain_setup(bench, **sizes, **BOTH),
            "MoTo": plain_setup(bench, **sizes, modulation="moto"),
            "twice the layers": plain_setup(bench, **sizes | {"layers": 4}),
        }.items()
    }
    share = {name: n / counts["plain"] - 1 for name, n in counts.items()}
    return Outcome(
        result=_counted(share["both"], "counted"),
        control=_counted(share["twice the layers"], "counted"),
        data={"counts": counts, "source": data.source},
    )


def few_at_scale(bench: Bench) -> Outcome:
    """2c: parameters that MoTo adds to a model of DeiT-S's size; control: of two layers."""
    from orbitlens.orbit import OrbitConfig, OrbitForImageClassification

    shares = {}
    with torch.device("meta"):
        for layers in (12, 2):
            model = OrbitForImageClassification(OrbitConfig(num_hidden_layers=layers, **SMALL_S))
            shares[layers] = n_parameters(MoTo(384)) / n_parameters(model)
    bench.step(1.0)
    return Outcome(result=_counted(shares[12], "counted"), control=_counted(shares[2], "counted"))


# --- tokens as wide as patches ---------------------------------------------------------------


def wide_tokens_keep_all(bench: Bench) -> Outcome:
    """4c: 1 - R^2 of tokens as wide as their patch; control: a third as wide."""
    result: list[float] = []
    control: list[float] = []
    for seed in bench.seeds:
        generator = bench.generator("wide", seed)
        pixels = torch.randn(800, 49, generator=generator, dtype=torch.float64)
        for width, rows in ((49, result), (16, control)):
            tokens = pixels @ torch.randn(49, width, generator=generator, dtype=torch.float64)
            rows.append(1 - linear_r2(tokens[:400], pixels[:400], tokens[400:], pixels[400:]))
    return Outcome(
        result=estimate.largest(result, of="seeds"), control=estimate.smallest(control, of="seeds")
    )


def paper_itself(bench: Bench) -> Outcome:
    """6a: the paper's own formulas at the paper's own scale."""
    bench.step(1.0)
    return Outcome(obstacle=OUT_OF_REACH)
