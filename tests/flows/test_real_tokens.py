"""Flows that start from a model's own tokens, beside what the model does to them."""

import math
from dataclasses import replace

import pytest
import torch
from typer.testing import CliRunner

from orbit_models import tiny, token_ids
from orbitlens.cli.app import app
from orbitlens.errors import InputError
from orbitlens.flows.outcome import log_spreads
from orbitlens.flows.real_tokens import layer_tokens
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.simulation import Simulation, simulate
from orbitlens.running.model import load
from orbitlens.theory.clouds import mean_cosine
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions
from slow_flow import normal, seeded

IDS = token_ids(batch=1)[0].tolist()
ONE_LAYER = SimulateOptions(until=1.0)
ZOO = "orbit-nano-rotary"


@pytest.fixture(scope="module")
def model():
    return load(tiny(norm="pre", norm_kind="layer"))


def test_what_is_measured_is_what_a_trace_measures(model):
    """Two ways through the code: hooks of one layer, and the sums of a whole trace."""
    traced = trace(model, [IDS], options=TraceOptions())
    for layer in range(3):
        tokens = layer_tokens(model, IDS, layer=layer)
        here = traced.layers[layer].directions
        whole = simulate(model.layer(layer), ONE_LAYER, tokens=tokens).measured
        assert whole.log_change == pytest.approx(here.attention, abs=1e-9)
        assert whole.cosine_before == pytest.approx(here.cosine_before, abs=1e-9)
        assert whole.cosine_after == pytest.approx(here.cosine_attention, abs=1e-9)
        for h in range(4):
            one = simulate(model.head(layer, h), ONE_LAYER, tokens=tokens).measured
            assert one.log_change == pytest.approx(here.heads[h].alone, abs=1e-9)


def test_heads_and_the_bias_add_up_to_what_attention_adds(model):
    tokens = layer_tokens(model, IDS, layer=1)
    whole = tokens.heads.sum(dim=0) + model.layer(1).b_o
    assert torch.allclose(whole, tokens.attention, atol=1e-12)


def test_the_comparison_is_with_one_layer_however_long_the_run(model):
    tokens = layer_tokens(model, IDS, layer=1)
    one, ten = (
        simulate(model.layer(1), replace(ONE_LAYER, until=t), tokens=tokens) for t in (1.0, 10.0)
    )
    near = pytest.approx(one.measured.simulated_log_change, abs=1e-6)
    assert ten.measured.simulated_log_change == near
    changes = log_spreads(one.trajectory.unit_tokens)
    assert one.measured.simulated_log_change == pytest.approx((changes[-1] - changes[0]).item())


def test_signs_are_compared_where_both_are_beyond_the_bound(model):
    step = simulate(model.layer(1), ONE_LAYER, tokens=layer_tokens(model, IDS, layer=1)).measured
    pairs = {
        (0.2, 0.1): "the same sign",
        (-0.2, 0.1): "the opposite sign",
        (0.2, 0.005): "too small to tell (a change within 0.01)",
    }
    for (measured, flow), words in pairs.items():
        changed = replace(step, log_change=measured, simulated_log_change=flow)
        assert changed.agreement == words
        verb = "spreads directions" if measured > 0 else "gathers directions"
        assert verb in changed.lines()[0][1]
        assert words in changed.lines()[1][1]


def test_tokens_of_another_layer_are_refused(model):
    with pytest.raises(InputError, match="tokens of layer 0, and the flow is one of layer 1"):
        simulate(model.layer(1), ONE_LAYER, tokens=layer_tokens(model, IDS, layer=0))


def test_a_head_behind_a_norm_on_the_sum_of_heads_has_no_step_of_its_own():
    peri = load(tiny(norm="peri"))
    tokens = layer_tokens(peri, IDS, layer=1)
    with pytest.raises(InputError, match="Simulate the whole layer"):
        simulate(peri.head(1, 0), ONE_LAYER, tokens=tokens)
    assert simulate(peri.layer(1), ONE_LAYER, tokens=tokens).measured is not None


def test_contexts_are_cut_to_what_is_asked_and_to_what_the_model_takes(model):
    many = token_ids(30, batch=1)[0].tolist()
    assert len(layer_tokens(model, many, layer=0, n_tokens=9).before) == 9
    assert len(layer_tokens(model, many, layer=0, n_tokens=64).before) == 30


def test_the_command_starts_from_a_text(tmp_path):
    text, file = tmp_path / "text.txt", tmp_path / "flow.json"
    text.write_text("one two three four five six seven eight nine ten. " * 20)
    given = ["simulate", "--head", f"{ZOO}:1.0", "--text", str(text), "--tokens", "24"]
    done = CliRunner().invoke(app, [*given, "--json", str(file)])
    assert done.exit_code == 0, done.output
    kept = Simulation.load(file)
    assert kept.trajectory.unit_tokens.shape[1] == 24
    assert kept.options.until == 1.0
    zoo = load(ZOO)
    tokens = layer_tokens(zoo, text, layer=1, n_tokens=24)
    made = simulate(zoo.head(1, 0), replace(ONE_LAYER, n_tokens=24), tokens=tokens)
    assert kept.measured == made.measured
    shown = " ".join(CliRunner().invoke(app, given).output.split())
    assert "measured head 1.0 alone" in shown
    assert "the flow in one unit of time" in shown


def test_a_text_or_a_length_without_a_model_is_refused(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("words")
    for given in (["--text", str(text)], ["--token-length", "3"]):
        done = CliRunner().invoke(app, ["simulate", *given])
        assert done.exit_code != 0
        assert "--head" in str(done.exception or done.output)


def test_spreads_are_logarithms_of_one_minus_the_mean_cosine():
    x = normal(seeded(1), 9, 5)
    found = log_spreads(x[None]).item()
    assert found == pytest.approx(math.log(1 - mean_cosine(x)), rel=1e-12)
    near = x[:1] + 1e-9 * x  # 1 - C of 1e-18 is not a difference of near numbers
    assert -46 < log_spreads(near[None]).item() < -36
    assert log_spreads(x[None, :1]).item() < -600  # one token has no spread
