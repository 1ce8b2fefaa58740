"""What studies measure, on cases whose answer is known."""

import math

import pytest
import torch

from orbitlens.flows.system import Mask, system_of_maps
from orbitlens_papers.bench import Bench, Scale, Settings
from orbitlens_papers.breaking_symmetry import exact, learning, slices
from orbitlens_papers.breaking_symmetry.exact import Kind
from orbitlens_papers.token_dynamics import flows, rotary, training

EYE = torch.eye(3, dtype=torch.float64)


@pytest.fixture
def bench(tmp_path):
    return Bench(Settings(scale=Scale.SMOKE, seeds=1), tmp_path)


@pytest.fixture
def tokens(generator):
    return torch.randn(6, 3, generator=generator, dtype=torch.float64)


# --- flows -----------------------------------------------------------------------------------


def test_the_decay_of_the_plainest_system_has_the_exponent_of_theory(tokens):
    assert flows.decay(system_of_maps(EYE, -EYE), tokens).exponent == pytest.approx(-0.5, abs=0.01)


def test_an_exponential_decay_has_no_such_exponent(tokens):
    system = flows.replace(system_of_maps(EYE, -EYE), mask=Mask.CAUSAL)
    assert flows.decay(system, tokens).exponent < -2


def test_pairs_that_come_together_are_noticed(tokens):
    assert flows.worst_pair_drop(system_of_maps(EYE, EYE), tokens, EYE) < 1e-8
    assert flows.worst_pair_drop(system_of_maps(EYE, -EYE), tokens, EYE) > 0.01


def test_stretch_is_the_flow_of_a_linear_system():
    """With W = 0 attention is uniform: differences between tokens stay as they are."""
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.5], [0.3, -2.0]], dtype=torch.float64)
    low, high = flows.stretch(system_of_maps(0 * EYE[:2, :2], -EYE[:2, :2]), x)
    assert (low, high) == pytest.approx((0.0, 0.0), abs=1e-6)


def test_draws_have_the_signs_they_promise(bench):
    for draw in flows.draws(bench, "test", 0.5, n=6):
        values = torch.linalg.eigvalsh((draw.alignment + draw.alignment.T) / 2)
        assert (values > 0).sum() == round(len(values) * 0.5)
    twisted = next(iter(flows.draws(bench, "test", 1.0, twist=2.0, n=1)))
    assert (twisted.alignment - twisted.alignment.T).abs().max() > 0.1


# --- rotary ----------------------------------------------------------------------------------


def test_one_position_turns_nothing(bench):
    x = 0.3 * torch.randn(64, rotary.WIDTH, generator=bench.generator("x")).double()
    plain = rotary.simulated_change(math.inf, 1, 1.0, x)
    assert rotary.simulated_change(100.0, 1, 1.0, x) == pytest.approx(plain, rel=1e-9)
    assert rotary.simulated_change(100.0, 16, 1.0, x) < 0.9 * plain


def test_the_closure_of_an_isotropic_cloud_is_known():
    """d/dt s = 2 s^2 for W = V = I: s(t) = s / (1 - 2 s t)."""
    start = rotary.SIZE**2
    expected = -math.log(1 - 2 * start * rotary.UNTIL)
    assert rotary.closure_change(math.inf, 1, 1.0) == pytest.approx(expected, rel=1e-4)


# --- symmetry --------------------------------------------------------------------------------


def test_order_needs_a_mask_and_two_layers_or_an_encoding(bench):
    assert exact.defect(Kind(), bench, 0) < 1e-12
    assert exact.defect(Kind(mask="causal", layers=1), bench, 0) < 1e-12
    assert exact.defect(Kind(mask="causal", layers=2), bench, 0) > 0.01
    assert exact.defect(Kind(position="rotary", layers=1), bench, 0) > 0.01


def test_the_smallest_counterexample_is_one():
    rows = exact.smallest_counterexample()["rows"]
    differs = [abs(row["output"] - row["swapped"]) > 1e-9 for row in rows]
    assert differs == [row["layers"] == 2 and row["mask"] == "causal" for row in rows]


def test_a_probe_finds_the_token_that_is_there_and_no_other(generator):
    items = torch.randint(4, (300, 3), generator=generator)
    states = torch.nn.functional.one_hot(items, 4).double()
    table = slices.identity_table(states, items, generator)
    assert slices.peak(table) > 0.5
    assert slices.peak(slices.identity_table(states, items, generator, shuffled=True)) < 0.05
    rolled = slices.identity_table(states.roll(1, dims=1), items, generator)
    assert slices.peak(rolled) < -0.5


def test_places_are_read_off_states_that_hold_them(generator):
    places = torch.arange(8, dtype=torch.float64).expand(30, 8)[..., None]
    noise = torch.randn(30, 8, 3, generator=generator, dtype=torch.float64)
    assert slices.place_score(torch.cat([places, noise], dim=-1), generator) > 0.99
    assert slices.place_score(noise, generator) < 0.1


def test_models_that_have_not_learnt_enough_are_not_looked_into(bench, monkeypatch):
    monkeypatch.setattr(bench, "pick", lambda smoke, default, full: default)
    monkeypatch.setattr(learning, "trained_tables", lambda bench, residual: [{}] * 5)
    monkeypatch.setattr(learning, "short_runs", lambda bench, residual: [None] * 8)
    for measure in (learning.trained_slices, learning.residuals_keep_trained_slices):
        outcome = measure(bench, over="last")
        assert outcome.result is None
        assert "5 of 8 models were trained to 99%" in outcome.obstacle


def test_layers_are_read_as_the_last_their_mean_or_the_least_without_the_embedding():
    lead = [0.9, 0.1, 0.4, 0.25]
    assert learning.READINGS["last"](lead) == 0.25
    assert learning.READINGS["mean"](lead) == pytest.approx(0.25)
    assert learning.READINGS["least"](lead) == 0.1


# --- nothing to learn ------------------------------------------------------------------------


def test_a_shuffled_text_has_the_same_characters_in_another_order(bench):
    file = training.noise_file(bench, "text")
    text, source = file.read_text(), training.passage().read_text()
    assert sorted(text) == sorted(source)
    assert text != source


def test_noise_images_are_read_by_the_task_and_not_by_the_eye(bench):
    from orbitlens.lab.tasks import build_task

    task = build_task("digits", {"file": str(training.noise_file(bench, "digits"))})
    batch = task.batch("test", 0, 30, 0)
    assert batch.inputs.shape[1:] == (1, 8, 8)
    assert set(batch.targets.tolist()) <= set(range(10))


def test_language_modelling_asks_for_a_text(tmp_path):
    plain = Bench(Settings(scale=Scale.DEFAULT), tmp_path)
    assert "give a file of text" in training.obstacle(plain, "text")
    assert training.obstacle(plain, "digits") == ""
    short = tmp_path / "short.txt"
    short.write_text("too short")
    given = Bench(Settings(scale=Scale.DEFAULT, text=str(short)), tmp_path)
    assert "at least" in training.obstacle(given, "text")
