"""What a page holds of a model's heads, and why it holds none of some."""

import base64

import numpy as np
import pytest
import torch

import orbitlens as ol
from orbitlens.exploring.head_flows import model_flows, picture_axes, read_layer
from orbitlens.exploring.sentence import Prompt
from orbitlens.flows.real_tokens import layer_tokens


def numbers(text):
    return np.frombuffer(base64.b64decode(text), dtype="<f4")


def test_tokens_are_those_of_the_model_in_front_of_the_layer(explorer):
    flow = explorer.data.flow.model.layers[1]
    own = layer_tokens(ol.load("orbit-nano-rotary"), explorer.data.text, layer=1).before
    seen = own - own.mean(dim=1, keepdim=True)  # a LayerNorm takes the mean coordinate away
    assert np.allclose(numbers(flow.tokens).reshape(own.shape), seen.numpy(), atol=1e-5)
    assert flow.ghost_cosine[0] == pytest.approx(_cosine(seen), abs=1e-9)


def _cosine(x):
    y = x / x.norm(dim=1, keepdim=True)
    n = len(y)
    return ((y @ y.T).sum().item() - n) / (n * (n - 1))


def test_axes_are_orthogonal_and_their_signs_settled(generator):
    axes = picture_axes(torch.randn(9, 5, generator=generator, dtype=torch.float64))
    assert torch.allclose(axes @ axes.T, torch.eye(3, dtype=torch.float64), atol=1e-12)
    assert bool((axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)) > 0).all())


@pytest.mark.parametrize(("name", "why"), [("t5", "an encoder and a decoder"), ("gemma2", "caps")])
def test_a_model_without_such_flows_says_why(model_folder, name, why):
    found = model_flows(ol.load(model_folder(name)), Prompt(ids="1 2 3 4"))
    assert found.layers == () and why in found.why_missing


def test_a_budget_leaves_layers_out_and_says_so():
    found = model_flows(ol.load("orbit-nano-none"), Prompt(text="To be"), budget=150_000)
    assert [one.layer for one in found.layers] == [0, 3] and "2 of 4 layers" in found.why_missing


def test_a_layer_starts_from_the_sentence_that_is_asked_about():
    model = ol.load("orbit-nano-none")
    found = read_layer(model, Prompt(text="not to be"), 2)
    assert found.flow.layer == 2 and "".join(found.tokens) == "not to be"
    own = layer_tokens(model, "not to be", layer=2).before
    seen = own - own.mean(dim=1, keepdim=True)
    assert np.allclose(numbers(found.flow.tokens).reshape(own.shape), seen.numpy(), atol=1e-5)
    with pytest.raises(ol.InputError, match="layers 0 to 3"):
        read_layer(model, Prompt(text="not to be"), 4)
    with pytest.raises(ol.InputError, match="empty"):
        read_layer(model, Prompt(text=" "), 1)


@pytest.mark.parametrize(
    ("name", "given"),
    [("llama-grouped", Prompt(ids="5 1 2 3")), ("vit", Prompt(sample=1))],
)
def test_ids_and_images_start_flows_as_well(model_folder, name, given):
    found = read_layer(ol.load(model_folder(name)), given, 1)
    assert len(found.tokens) == found.flow.n_tokens
