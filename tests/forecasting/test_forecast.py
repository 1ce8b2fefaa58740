"""The forecast of untrained stacks, against stacks that are built and run."""

import json
import math

import numpy as np
import pytest
import torch
import transformers
from torch.nn import functional

import orbitlens as ol
from orbitlens.errors import InputError, UnknownFamilyError
from orbitlens.forecasting.activations import kernel
from orbitlens.forecasting.configs import blueprint_of
from orbitlens.forecasting.grams import attention, normal_rows, start
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.config import OrbitConfig
from small_llama import refused, run

SIZES = {"layers": 6, "width": 128, "heads": 4, "context": 24, "vocabulary": 500}


def built(plan, seeds=10):
    """Return C in front of each layer and behind the last, and the ratio of gradients."""
    courses, ratios = [], []
    for seed in range(seeds):
        torch.manual_seed(seed)
        config = OrbitConfig(
            vocab_size=plan.vocabulary,
            hidden_size=plan.width,
            num_hidden_layers=plan.layers,
            num_attention_heads=plan.heads,
            intermediate_size=plan.d_inner,
            initializer_range=plan.init,
            norm=plan.norm,
            norm_kind="rms",
            position=plan.position,
            mask=plan.mask,
            activation=plan.activation,
            max_position_embeddings=plan.context,
        )
        model = OrbitForCausalLM(config).model
        states = []
        for block in model.layers:
            block.register_forward_pre_hook(lambda module, args, to=states: to.append(args[0]))
        model.layers[-1].register_forward_hook(
            lambda module, args, out, to=states: to.append(out[0])
        )
        out = model(input_ids=torch.randint(plan.vocabulary, (2, plan.context))).last_hidden_state
        for state in states:
            state.retain_grad()
        (out * torch.randn_like(out)).sum().backward()
        courses.append([mean_cosine(state.detach()) for state in states])
        ratios.append(float(states[0].grad.norm() / states[-1].grad.norm()))
    return np.mean(courses, axis=0), math.exp(np.mean(np.log(ratios)))


def mean_cosine(x):
    y = functional.normalize(x.double(), dim=-1)
    n = y.shape[1]
    return float(((y @ y.mT).sum(dim=(1, 2)) - n).mean() / (n * (n - 1)))


CASES = {
    "pre": {"init": 0.05, "activation": "gelu", "position": "learned"},
    "post": {"init": 0.08, "activation": "swiglu", "position": "rotary"},
    "peri": {"init": 0.02, "activation": "gelu", "position": "alibi"},
    "pre sharp": {"init": 0.2, "activation": "swiglu", "position": "rotary"},
    "post full": {"init": 0.05, "activation": "gelu", "position": "none", "mask": "full"},
}


@pytest.mark.parametrize("name", CASES)
def test_cosines_and_gradients_are_those_of_models_that_are_built(name):
    plan = ol.Blueprint(**SIZES, **CASES[name], norm=name.split()[0])
    runs = [ol.forecast(plan, seed=seed) for seed in range(3)]
    found = np.mean([[each.cosine for each in run.depths] for run in runs], axis=0)
    ratio = math.exp(np.mean([math.log(run.depths[0].gradient) for run in runs]))
    cosines, measured = built(plan)
    assert np.abs(found - cosines).max() < 0.05
    assert 0.7 < ratio / measured < 1.4


def test_another_norm_gives_another_course():
    plan = ol.Blueprint(**SIZES, norm="pre", init=0.05)
    cosines, _ = built(plan)
    other = ol.forecast(ol.Blueprint(**SIZES, norm="post", init=0.05))
    assert abs(other.last.cosine - cosines[-1]) > 0.1


def test_the_kernel_of_relu_is_known():
    # Cho and Saul: (sqrt(1 - r^2) + r (pi - arccos r)) / (2 pi), times the variance
    for correlation in (-0.5, 0.0, 0.3, 0.9, 1.0):
        angle = math.acos(correlation)
        exact = (math.sin(angle) + correlation * (math.pi - angle)) / (2 * math.pi)
        found = kernel("relu", 2.0).of(np.array([correlation]))
        assert float(found[0]) == pytest.approx(4 * exact, abs=5e-3)


@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
def test_kernels_are_the_means_of_products(activation):
    rng = np.random.default_rng(0)
    rows = normal_rows(np.array([[1.0, 0.6], [0.6, 1.0]]), (2, 400_000), rng) * 1.5
    x = torch.tensor(rows, requires_grad=True)
    y = functional.gelu(x) if activation == "gelu" else functional.silu(x)
    y.sum().backward()
    y = y.detach()
    found = kernel(activation, 1.5)
    rho = np.array([0.6])
    assert float(found.of(rho)[0]) == pytest.approx(float((y[0] * y[1]).mean()), rel=0.02)
    slopes = float((x.grad[0] * x.grad[1]).mean())
    assert float(found.slope_of(rho)[0]) == pytest.approx(slopes, rel=0.02)


def test_uniform_attention_has_a_closed_form():
    # Tokens at one cosine p: causal means of i and k of them have p + (1 - p) / max(i, k).
    plan = ol.Blueprint(**{**SIZES, "vocabulary": 1 << 20}, init=1e-4, position="none", epsilon=0.0)
    rng = np.random.default_rng(0)
    p = 0.3
    gram = p + (1 - p) * np.eye(plan.context)
    branch = attention(plan, gram, rng)
    order = np.arange(1, plan.context + 1)
    exact = p + (1 - p) / np.maximum.outer(order, order)
    gain = (plan.width * plan.init**2) ** 2
    assert np.allclose(branch.written / gain, exact, rtol=1e-3)


def test_embeddings_of_equal_tokens_are_equal():
    plan = ol.Blueprint(**{**SIZES, "vocabulary": 1}, position="none")
    gram = start(plan, np.random.default_rng(0))
    assert np.allclose(gram, plan.init**2)


@pytest.mark.parametrize(
    ("make", "layers"),
    [
        (
            lambda: transformers.GPT2LMHeadModel(
                transformers.GPT2Config(n_embd=128, n_head=4, n_layer=6, vocab_size=500)
            ),
            "transformer.h",
        ),
        (
            lambda: transformers.LlamaForCausalLM(
                transformers.LlamaConfig(
                    hidden_size=128,
                    num_attention_heads=4,
                    num_hidden_layers=6,
                    vocab_size=500,
                    intermediate_size=256,
                    initializer_range=0.05,
                )
            ),
            "model.layers",
        ),
        (
            lambda: transformers.BertModel(
                transformers.BertConfig(
                    hidden_size=128,
                    num_attention_heads=4,
                    num_hidden_layers=6,
                    vocab_size=500,
                    intermediate_size=256,
                    initializer_range=0.08,
                )
            ),
            "encoder.layer",
        ),
    ],
)
def test_configs_of_transformers_say_how_their_models_start(make, layers):
    courses = []
    for seed in range(3):
        torch.manual_seed(seed)
        module = make().eval()
        states = []
        for block in module.get_submodule(layers):
            block.register_forward_pre_hook(lambda part, args, to=states: to.append(args[0]))
        with torch.no_grad():
            module(input_ids=torch.randint(1, 500, (4, 24)))
        courses.append([mean_cosine(state) for state in states])
    found = ol.forecast(module.config, context=24)
    expected = np.mean(courses, axis=0)
    gaps = [abs(a.cosine - b) for a, b in zip(found.depths, expected, strict=False)]
    assert max(gaps) < 0.06


def test_the_summary_tells_collapse_and_a_way_out():
    found = ol.forecast(ol.Blueprint(layers=32, width=256, heads=4, norm="post", init=0.1))
    assert found.collapsed_at is not None
    assert "cannot be told apart" in found.summary()
    assert found.remedies
    assert all(remedy.cosine <= 0.95 for remedy in found.remedies)
    calm = ol.forecast(ol.Blueprint(layers=4, width=256, heads=4))
    assert calm.collapsed_at is None
    assert calm.remedies == ()
    assert "do not collapse" in calm.summary()
    again = ol.ArchitectureForecast.from_json(found.to_json())
    assert again.to_json() == found.to_json()
    assert len(found.to_pandas()) == 33


def test_the_command_takes_sizes_or_a_config(tmp_path):
    out = run("forecast", "--layers", "3", "--width", "64", "--heads", "4", "--json", "-")
    found = json.loads(out.out)
    assert len(found["depths"]) == 4
    config = transformers.GPT2Config(n_embd=64, n_head=4, n_layer=3, vocab_size=500).to_dict()
    (tmp_path / "config.json").write_text(json.dumps(config))
    shown = run("forecast", tmp_path, "--norm", "post").out
    assert "post-norm" in shown
    assert "3 layers, width 64" in shown


def test_what_no_family_reads_is_refused(tmp_path):
    with pytest.raises(UnknownFamilyError, match="not known how such a model starts"):
        blueprint_of({"model_type": "mamba"})
    (tmp_path / "config.json").write_text("[]")
    refused("forecast", tmp_path, says="expected an object")
    refused("forecast", tmp_path / "nowhere", says="no config can be read there")
    refused("forecast", says="give a config.json, or sizes")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"width": 10, "heads": 4}, "does not split"),
        ({"norm": "sideways"}, "Choose one of: pre, post, peri"),
        ({"init": 0.0}, "above 0"),
        ({"layers": 0}, "expected 1 to"),
        ({"position": "rotary", "width": 20, "heads": 4}, "turns pairs"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, says):
    with pytest.raises(InputError, match=says):
        ol.Blueprint(**fields)
