"""Tiny models as subjects of an audit, and models with a fault on purpose."""

import copy
from dataclasses import replace

import torch

from orbitlens.order.checks import verify
from orbitlens.order.comparing import Bench
from orbitlens.order.subject import make_subject
from orbitlens.running.images import patches_of_images
from tiny_models import CASES, N_TOKENS, build, inputs_for

BY_NAME = {case.name: case for case in CASES}
TOWERS = [
    (case.name, stack)
    for case in CASES
    for stack in (("encoder", "decoder") if case.inputs in {"seq2seq", "audio"} else (None,))
]


def subject_of(name, stack=None, *, n_layers=None, n_samples=3, window=64):
    """Return a subject and a few inputs."""
    case = BY_NAME[name]
    if n_layers is not None:
        case = replace(case, config=with_layers(case, n_layers, window))
    model = build(case)
    given = inputs_for(case, model)
    companion = {}
    if case.inputs == "image":
        images = torch.randn(n_samples, *given["pixel_values"].shape[1:], dtype=torch.float64)
        items = patches_of_images(images, model.config.patch_size)
    else:
        generator = torch.Generator().manual_seed(11)
        items = torch.randint(3, 39, (n_samples, N_TOKENS), generator=generator)
    if case.inputs == "audio":
        companion = {"input_features": given["input_features"]}
    elif stack == "decoder":
        companion = {"input_ids": given["input_ids"]}
    return make_subject(model, stack=stack, companion=companion), items


def probed(subject, items, generator, **options):
    """Return the self-checks of an audit of these inputs."""
    bench = Bench(subject=subject, items=items, generator=generator)
    return verify(bench, generator=generator, **options)


LAYER_KEYS = ("n_layer", "num_layers", "n_layers", "num_hidden_layers", "num_decoder_layers")
LAYER_KEYS += ("decoder_layers",)


def with_layers(case, n_layers, window=64):
    """Return the case's config with that many layers, and with windows of that size if any."""
    config = dict(case.config)
    for key in LAYER_KEYS:
        if key in config:
            config[key] = n_layers
    if "attention_types" in config:
        config["attention_types"] = [[["global"], n_layers]]
    if "layer_types" in config:
        config["layer_types"] = ["full_attention"] * n_layers
    config.pop("num_hidden_groups", None)
    if "sliding_window" in config:  # S2 needs a query that sees all: no window this short
        config["sliding_window"] = window
    return config


class Faulty(torch.nn.Module):
    """A model behind a wrapper that changes its arguments before each call."""

    has_head = True

    def __init__(self, model, change):
        super().__init__()
        self.inner = model
        self.config = model.config
        self.change = change

    def forward(self, **arguments):
        return self.inner(**self.change(arguments))


def faulty(name, change, **options):
    """Return a subject whose model's arguments are tampered with."""
    subject, items = subject_of(name, **options)
    return make_subject(Faulty(subject.model, change)), items


def without_positions(model):
    """Return a copy of a GPT-2 or BERT that adds the same vector at every position."""
    twin = copy.deepcopy(model)
    for name, parameter in twin.named_parameters():
        if name.endswith(("wpe.weight", "position_embeddings.weight")):
            parameter.data.zero_()
    return twin
