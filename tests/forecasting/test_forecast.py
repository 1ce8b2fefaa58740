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
from orbitlens.forecasting.built import built_cosines, built_course
from orbitlens.forecasting.configs import blueprint_of
from orbitlens.forecasting.grams import alibi_bias, attention, root_of, start
from orbitlens.heads.head import alibi_slopes
from orbitlens.theory.clouds import mean_cosine
from small_llama import refused, run

SIZES = {"layers": 6, "width": 128, "heads": 4, "context": 24, "vocabulary": 500}


def built(plan, seeds=10):
    """Return C in front of each layer and behind the last, and the ratio of gradients."""
    runs = [built_course(plan, seed) for seed in range(seeds)]
    ratio = math.exp(np.mean([math.log(run.gradient) for run in runs]))
    return np.mean([run.cosines for run in runs], axis=0), ratio


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


def test_a_run_forward_alone_has_the_same_cosines():
    plan = ol.Blueprint(**SIZES, norm="post", init=0.1)
    assert built_cosines(plan, 3) == built_course(plan, 3).cosines


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
    rows = 1.5 * root_of(np.array([[1.0, 0.6], [0.6, 1.0]])) @ rng.standard_normal((2, 400_000))
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


@pytest.mark.parametrize("heads", [4, 6, 12])
def test_slopes_of_alibi_are_those_of_models(heads):
    plan = ol.Blueprint(width=24, heads=heads, position="alibi", context=5)
    bias = alibi_bias(plan, heads)
    assert np.allclose(bias[:, 4, 3], -np.array(alibi_slopes(heads)))
    assert np.allclose(bias, bias.transpose(0, 2, 1))


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
        courses.append([np.mean([mean_cosine(x.double()) for x in state]) for state in states])
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


ORBIT = {"model_type": "orbit", "n_layers": 2, "d_model": 16, "n_heads": 2, "vocab_size": 50}


@pytest.mark.parametrize("value", [[], {}, True, -1, 10**400, 1e308, float("nan"), "x\x1b[31m"])
@pytest.mark.parametrize(
    "key",
    [
        "model_type",
        "n_layers",
        "d_model",
        "vocab_size",
        "norm",
        "inner",
        "refinement",
        "rotary_base",
    ],
)
def test_a_config_with_what_is_no_such_setting_is_refused_kindly(key, value, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**ORBIT, key: value}))
    refused("forecast", tmp_path, says="")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"width": 10, "heads": 4}, "does not split"),
        ({"norm": "sideways"}, "Choose one of: pre, post, peri"),
        ({"init": 0.0}, "init is 0.0; expected 1e-12"),
        ({"init": 1e-300}, "init is 1e-300"),
        ({"inner": 10**30}, "inner is 1"),
        ({"vocabulary": 0}, "vocabulary is 0"),
        ({"rotary_base": 1e308}, "rotary_base is 1e\\+308"),
        ({"epsilon": float("nan")}, "epsilon is nan"),
        ({"layers": 0}, "expected 1 to"),
        ({"position": "rotary", "width": 20, "heads": 4}, "turns pairs"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(fields, says):
    with pytest.raises(InputError, match=says):
        ol.Blueprint(**fields)


@pytest.mark.parametrize("init", [0.02, 0.05])
def test_without_norms_cosines_are_those_of_models_that_are_built(init):
    plan = ol.Blueprint(norm="none", init=init, **SIZES)
    cosines, _ = built(plan)
    told = np.mean([[d.cosine for d in ol.forecast(plan, seed=k).depths] for k in range(4)], axis=0)
    assert np.abs(told - cosines).max() < 0.05


def test_without_norms_sizes_that_explode_stay_finite():
    found = ol.forecast(
        ol.Blueprint(layers=64, width=64, heads=4, norm="none", init=0.5, activation="swiglu")
    )
    assert all(math.isfinite(each.gradient) and math.isfinite(each.size) for each in found.depths)
    assert found.last.size > 1e10


# --- definite heads --------------------------------------------------------------------------


@pytest.mark.parametrize("arm", ["definite-negative", "definite-half", "definite-positive"])
def test_definite_heads_gather_as_models_that_are_built_do(arm):
    plan = ol.Blueprint(
        layers=8, width=48, heads=4, norm="post", init=0.02, context=32, refinement=arm
    )
    cosines, _ = built(plan, seeds=4)
    told = np.mean([[d.cosine for d in ol.forecast(plan, seed=k).depths] for k in range(4)], axis=0)
    assert np.abs(told - cosines).max() < 0.08
    assert (told[-1] > 0.5) == (arm != "definite-negative")  # the sign decides, and is forecast


def test_definite_heads_with_a_form_that_is_not_known_are_refused():
    plan = ol.Blueprint(refinement="definite-half", position="rotary")
    with pytest.raises(InputError, match="without rotary positions"):
        ol.forecast(plan)
