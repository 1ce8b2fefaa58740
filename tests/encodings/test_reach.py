"""How far a context reaches: predicted, measured, advised; and what is said where it cannot be."""

import json
from dataclasses import replace

import pytest
import torch

import orbitlens as ol
from orbitlens.encodings.advice import advise
from orbitlens.encodings.head_reach import heads_reach, reach_of_head
from orbitlens.encodings.long_run import by_position, increases, row_losses
from orbitlens.encodings.options import PositionsOptions, ReachOptions
from orbitlens.encodings.order_distance import order_points
from orbitlens.encodings.reach import reach_of
from orbitlens.encodings.reach_result import OrderPoint, Reach
from orbitlens.errors import InputError
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.config import OrbitConfig
from orbitlens.running.model import load
from orbitlens.running.texts import passage
from small_llama import refused, run
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
QUICK = ReachOptions(rows=4, max_tokens=512, advise=False, order=False)
WHOLE = replace(QUICK, advise=True, order=True, furthest=2.0)


def orbit(**switches):
    torch.manual_seed(0)
    config = OrbitConfig(vocab_size=32, initializer_range=0.2, **switches)
    return OrbitForCausalLM(config).float().eval()


def ids(count, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 32, (1, count), generator=generator)


@pytest.fixture(scope="module")
def rotary_reach():
    return reach_of(ol.load("orbit-nano-rotary"), passage(), WHOLE)


def test_a_rotary_model_is_predicted_to_fail_beyond_its_context_and_does(rotary_reach):
    last = rotary_reach.points[-1]
    assert last.length == 256
    assert last.predicted > 0.5
    assert last.measured > 0.5
    assert 0.5 < rotary_reach.unfinished() < 0.9
    assert "predicted to fail" in rotary_reach.summary()
    assert "Measured on" in rotary_reach.summary()


def test_an_alibi_model_is_predicted_to_hold_and_does():
    found = reach_of(ol.load("orbit-nano-alibi"), passage(), QUICK)
    assert all(abs(point.predicted) < 0.05 for point in found.points)
    assert all(abs(point.measured) < 0.05 for point in found.points if point.measured is not None)
    assert found.unfinished() is None
    assert "predicted to hold up to 512 tokens" in found.summary()


def test_what_is_advised_is_predicted_best_and_can_be_pasted(rotary_reach):
    advice = rotary_reach.advice
    assert advice.best.predicted == min(trial.predicted for trial in advice.trials)
    assert advice.best.predicted < advice.unchanged.predicted - 0.1
    json.dumps(advice.setting)
    assert advice.rule is not None
    assert (advice.rule.kind, advice.rule.factor) == ("yarn", advice.ratio)
    assert "YaRN with the factor asked for" in rotary_reach.summary()


def test_order_stops_mattering_within_the_context(rotary_reach):
    bits = [point.bits for point in rotary_reach.order]
    assert bits[0] > 20 * bits[-1]
    assert 1 <= rotary_reach.order_distance < 128


def test_order_never_matters_to_one_layer_without_positions():
    model = load(orbit(position="none", num_hidden_layers=1))
    points = order_points(model, ids(4 * 33).reshape(4, 33), 0)
    assert max(point.bits for point in points) < 1e-6


def test_no_swap_felt_is_a_distance_of_zero(rotary_reach):
    none = replace(rotary_reach, order=(OrderPoint(distance=1, bits=0.0),))
    assert none.order_distance == 0
    assert "No swap" in none.summary()


def test_the_result_is_a_table_a_figure_and_a_file(rotary_reach, tmp_path):
    table = rotary_reach.to_pandas()
    assert len(table) == 16
    assert {"unfinished", "half", "beyond", "sharpness_128"} <= set(table.columns)
    assert len(rotary_reach.plot().data) == 2
    assert Reach.load(rotary_reach.save(tmp_path / "reach.json")) == rotary_reach


def test_a_flat_head_looks_everywhere_alike():
    model = load(orbit(position="none", num_hidden_layers=1))
    layer = model.layer(0)
    layer.w_k.zero_()
    tokens = torch.randn(64, layer.head(0).d_model).double()
    found = reach_of_head(layer, 0, tokens, trained=16, lengths=(16, 64))
    assert found.attention == pytest.approx([1 / 64] * len(found.attention))
    assert found.half == 8
    assert found.beyond == pytest.approx(0.75)
    assert found.sharpness == pytest.approx((1 / 16, 1 / 64))
    assert found.unfinished is None


def test_alibi_heads_of_one_slope_have_one_kernel():
    model = load(orbit(position="alibi"))
    heads = list(heads_reach(model, ids(4 * 32).reshape(4, 32), 32, (32, 64)))
    steep = [head for head in heads if head.head == 0]
    assert all(head.beyond < 0.01 for head in steep)
    assert heads[3].beyond > heads[0].beyond


def test_increases_compare_the_same_tokens_with_more_and_less_context():
    model = load(orbit(position="rotary"))
    rows = ids(3 * 65).reshape(3, 65)
    with model.evaluating() as module:
        (twice,) = increases(model, rows, 32, (2.0,))
        whole = row_losses(model, rows)[:, -8:].mean(dim=1)
        short = row_losses(model, rows[:, 32:])[:, -8:].mean(dim=1)
        (nothing,) = increases(model, rows, 32, (1.0,))
        logits = module(input_ids=rows[:, :-1]).logits.log_softmax(dim=-1)
    assert torch.allclose(twice, whole - short)
    assert torch.equal(nothing, torch.zeros(3).double())
    direct = -logits.double().gather(2, rows[:, 1:, None])[..., 0]
    assert torch.allclose(row_losses(model, rows), direct, atol=1e-5)


def test_stretches_of_positions_are_means_of_losses():
    ends, losses = by_position(torch.arange(10.0)[None].double(), 2)
    assert ends.tolist() == [5, 10]
    assert losses.tolist() == [2.0, 7.0]


# --- what cannot be asked ----------------------------------------------------------------------


def test_a_table_of_positions_that_ends_is_said_to_end():
    model = load(orbit(position="learned", max_position_embeddings=32))
    found = reach_of(model, ids(1000), QUICK)
    assert found.points == ()
    assert any("ends after 32 tokens" in note for note in found.notes)


def test_rows_of_a_table_beyond_the_trained_context_are_asked_for():
    model = load(orbit(position="learned", max_position_embeddings=64))
    found = reach_of(model, ids(2000), replace(QUICK, trained=32))
    assert [point.length for point in found.points] == [48, 64]
    assert any("ends after 64 tokens" in note for note in found.notes)


def test_a_scaled_encoding_is_read_at_its_first_length_and_left_as_it_is():
    model = load(build(BY_NAME["llama-yarn"]).float())
    found = reach_of(model, ids(2000) % 29, replace(WHOLE, trained=32))
    assert any("stretched already (yarn)" in note for note in found.notes)
    assert any("no advice" in note for note in found.notes)
    assert found.advice is None
    assert found.points[0].predicted is not None


def test_layers_with_bases_of_their_own_are_predicted_and_not_advised():
    model = load(build(BY_NAME["gemma3"]).float())
    found = reach_of(model, ids(2000) % 29, replace(WHOLE, trained=32, order=False))
    assert any("encodings of their own" in note for note in found.notes)
    assert len({head.periods for head in found.heads}) > 1


def test_latent_attention_says_what_was_read():
    model = load(build(BY_NAME["deepseek_v2"]).float())
    found = reach_of(model, ids(2000) % 29, replace(WHOLE, trained=32, order=False))
    assert any("latent attention" in note for note in found.notes)
    assert found.points[0].predicted is not None


def test_a_family_without_position_ids_is_measured_only():
    model = load(build(BY_NAME["bloom"]).float())
    found = reach_of(model, ids(2000) % 29, replace(QUICK, trained=32))
    assert found.points[0].predicted is None
    assert found.points[0].measured is not None
    assert any("no loss is predicted" in note for note in found.notes)
    assert "Nothing is predicted" in found.summary()


def test_encoders_are_refused():
    with pytest.raises(InputError, match="asked of decoders"):
        reach_of(load(build(BY_NAME["bert"])), ids(100), QUICK)


def test_a_text_shorter_than_two_contexts_is_refused_with_numbers():
    model = load(orbit(position="rotary"))
    with pytest.raises(InputError, match=r"has 60 tokens.*needs at least 66"):
        reach_of(model, ids(60), replace(QUICK, trained=32))


def test_a_text_too_short_for_long_rows_is_predicted_on_only():
    model = load(orbit(position="rotary"))
    found = reach_of(model, ids(70), replace(QUICK, trained=32))
    assert found.points[0].measured is None
    assert found.by_position == ()
    assert any("too short to measure" in note for note in found.notes)


def test_advice_needs_a_rotary_encoding():
    model = load(orbit(position="alibi"))
    with model.evaluating(), pytest.raises(InputError, match="no layer is rotated"):
        advise(model, ids(4 * 33).reshape(4, 33), 32, 2.0)


# --- the verb and the command ------------------------------------------------------------------


def test_positions_takes_it_as_an_option():
    model = ol.load("orbit-nano-rotary")
    assert ol.positions(model).reach is None
    options = PositionsOptions(bases=(), max_tokens=256, reach=QUICK)
    found = ol.positions(model, passage(), options=options)
    assert found.reach.trained == 128
    assert found.reach.summary() in found.summary()


def test_the_command_shows_losses_heads_and_a_scaling(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(passage().read_text(encoding="utf-8")[:1200], encoding="utf-8")
    shown = run("positions", "orbit-nano-rotary", "--text", str(text), "--reach", "--context", "32")
    assert "its trained context" in shown.out
    assert "half within" in shown.out
    assert "yarn" in shown.out
    assert "as it is" in shown.out


def test_the_command_refuses_a_vision_model(model_folder):
    refused("positions", str(model_folder("vit")), "--reach", says=["decoders"])
