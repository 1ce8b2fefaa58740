"""Closures against exact answers, against sampling, and surrogates against what they promise."""

import math

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.heads.layers import load_layer
from orbitlens.running.capture import LayerStates
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import core, predicted_log_change
from orbitlens.tracing.closures import _mean_turn, frozen_closure, plain_closure
from orbitlens.tracing.gaussian_scores import RandomEnergy
from orbitlens.tracing.replay import attention_drift
from orbitlens.tracing.surrogates import SURROGATES, exact_changes, sampled_closure
from orbitlens.tracing.tally import LayerTally
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}


@pytest.fixture(scope="module")
def layer_of(tmp_path_factory):
    """Return a function: a case's name to its first attention layer, scores made small or not."""
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            build(BY_NAME[name]).save_pretrained(folder)
            known[name] = load_layer(load_checkpoint(folder), 0)
        return known[name]

    return get


def tally_of(layer, contexts, n_kept=4096):
    """Sum up contexts as a run of the model would, attention recomputed from the weights."""
    tally = LayerTally(layer=layer, n_kept=n_kept)
    drift = torch.stack([attention_drift(layer, x) for x in contexts])
    states = LayerStates(
        before=contexts,
        mixed=contexts.new_zeros(*contexts.shape[:2], layer.n_heads * layer.stack.d_head),
        projected=drift,
        attention=drift,
        after=contexts + drift,
        normed=contexts if layer.stack.norm is None else None,
        unnormed=contexts if layer.stack.norm is None else None,
    )
    tally.add(states)
    return tally


def gaussian_contexts(generator, count=6, n=256, d=24, size=0.3):
    root = torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d)
    return size * torch.randn(count, n, d, generator=generator, dtype=torch.float64) @ root


def test_plain_closure_is_exact_for_many_gaussian_tokens_and_small_scores(layer_of, generator):
    tally = tally_of(layer_of("bert"), gaussian_contexts(generator, count=3, n=400))
    predicted = plain_closure(tally)
    assert predicted.log_change == pytest.approx(tally.attention_change, rel=0.1)
    assert abs(tally.attention_change) > 0.005


def test_plain_closure_is_the_data_aware_rate_of_the_scan(layer_of, generator):
    layer = layer_of("bert")
    tally = tally_of(layer, gaussian_contexts(generator, n=64))
    expected = predicted_log_change(layer, tally.before.covariance.value)
    assert plain_closure(tally).log_change == pytest.approx(expected, rel=1e-9)


def test_plain_closure_fails_where_attention_is_sharp_and_frozen_does_not(layer_of, generator):
    tally = tally_of(layer_of("bert"), gaussian_contexts(generator, n=64, size=2.5))
    truth = tally.attention_change
    assert abs(plain_closure(tally).log_change - truth) > 1.0
    assert abs(frozen_closure(tally).log_change - truth) < 0.35


@pytest.mark.parametrize("size", [0.5, 1.0, 2.0])
def test_frozen_sharpness_follows_that_of_gaussian_tokens(layer_of, generator, size):
    layer = layer_of("bert")
    contexts = gaussian_contexts(generator, n=200, size=size)
    truth = exact_changes(layer, contexts).sharpness
    predicted = frozen_closure(tally_of(layer, contexts)).sharpness
    assert predicted == pytest.approx(truth, abs=0.2)


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2", "bloom", "mistral", "t5"])
def test_frozen_closure_reads_every_position_encoding(layer_of, generator, name, tmp_path):
    if name == "t5":
        build(BY_NAME[name]).save_pretrained(tmp_path)
        layer = load_layer(load_checkpoint(tmp_path), 0, stack="encoder")
    else:
        layer = layer_of(name)
    tally = tally_of(layer, gaussian_contexts(generator, n=48, size=1.0))
    found = frozen_closure(tally)
    assert math.isfinite(found.log_change)
    assert all(0 < s <= 1 for s in found.sharpness)
    assert found.log_change == pytest.approx(tally.attention_change, abs=0.6)


def test_the_random_energy_model_has_its_known_phases():
    n = 1000
    limit = math.sqrt(2 * math.log(n))
    sigma = torch.tensor([0.3 * limit, 0.7 * limit, 2 * limit]).double()
    energy = RandomEnergy(torch.zeros(3, n).double(), sigma.square()[:, None].expand(3, n))
    assert energy.critical.clamp(max=4).tolist() == pytest.approx(
        [min(4.0, limit / s) for s in sigma.tolist()], abs=1e-6
    )
    found = energy.sharpness(energy.frozen()[0]).tolist()
    expected = [
        math.exp(sigma[0].item() ** 2) / n,
        math.exp(-((limit - sigma[1].item()) ** 2)),
        1 - limit / sigma[2].item(),
    ]
    assert found == pytest.approx(expected, rel=1e-5)


def test_critical_temperatures_are_roots_and_take_few_evaluations(generator, monkeypatch):
    mean = 3 * torch.randn(200, 60, generator=generator, dtype=torch.float64)
    mean = mean.tril().masked_fill(~torch.ones(200, 60).tril().bool(), -math.inf)
    variance = torch.rand(200, 60, generator=generator, dtype=torch.float64) * 30
    asked, excess = [], RandomEnergy._excess
    monkeypatch.setattr(RandomEnergy, "_excess", lambda x, b: asked.append(b) or excess(x, b))
    energy = RandomEnergy(mean, variance)
    assert len(asked) <= 20
    low, high = torch.zeros(200).double(), torch.full((200,), 4.0).double()
    for _ in range(45):
        middle = (low + high) / 2
        above = excess(energy, middle)[0] > 0
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    assert torch.allclose(energy.critical, (low + high) / 2, rtol=0, atol=1e-10)


def test_the_joint_spread_of_heads_is_that_of_their_sum(layer_of, generator):
    layer = layer_of("llama-grouped")
    tally = tally_of(layer, gaussian_contexts(generator, n=24, size=1.0))
    s, cross = tally.what_heads_see.covariance.value, tally.stream_to_seen
    n = tally.kept[0].shape[0]
    whole = sum(
        maps.out @ core(maps, s) @ maps.left.T
        for maps in (HeadMaps.of(head, _mean_turn(head, n)) for head in layer)
    )
    total = tally.mean_squared_distance / 2
    moved = (whole @ s @ whole.T).trace() + 2 * (whole @ cross.T).trace()
    assert plain_closure(tally).log_change == pytest.approx(
        math.log1p(moved.item() / total), abs=1e-12
    )


# --- surrogates ------------------------------------------------------------------------------


@pytest.fixture
def story(generator):
    """Contexts with a constant first token, position means, and neighbours that are alike."""
    count, n, d = 60, 40, 24
    noise = torch.randn(count, n + 4, d, generator=generator, dtype=torch.float64)
    smooth = noise.unfold(1, 5, 1).mean(dim=-1) * math.sqrt(5)
    x = smooth + torch.linspace(-1, 1, n).double()[:, None]
    x[:, 0] = 8 * torch.ones(d).double()
    return x


def lag_one(x):
    inner = x[:, 1:] - x[:, 1:].mean(dim=0)
    return ((inner[:, 1:] * inner[:, :-1]).mean() / inner.square().mean()).item()


def drawn(story, layer, kind, generator):
    return SURROGATES[kind](tally_of(layer, story), 200, generator)


@pytest.mark.parametrize("kind", SURROGATES)
def test_surrogates_keep_the_spread_of_the_text(layer_of, story, generator, kind):
    contexts = drawn(story, layer_of("gpt2"), kind, generator)
    gap = contexts - contexts.mean(dim=1, keepdim=True)
    real = story - story.mean(dim=1, keepdim=True)
    assert gap.square().mean().item() == pytest.approx(real.square().mean().item(), rel=0.1)


@pytest.mark.parametrize("kind", [k for k in SURROGATES if k != "gaussian"])
def test_a_position_that_always_holds_one_token_stays_a_point(layer_of, story, generator, kind):
    contexts = drawn(story, layer_of("gpt2"), kind, generator)
    assert torch.allclose(contexts[:, 0], story[0, 0].expand_as(contexts[:, 0]), atol=1e-6)


def test_gaussian_draws_have_no_such_point(layer_of, story, generator):
    contexts = drawn(story, layer_of("gpt2"), "gaussian", generator)
    assert contexts[:, 0].std(dim=0).mean() > 0.5


@pytest.mark.parametrize(
    ("kind", "alike"),
    [
        ("gaussian", False),
        ("points", False),
        ("words", False),
        ("neighbours", True),
        ("chunks", True),
        ("itself", True),
    ],
)
def test_only_some_surrogates_keep_what_neighbours_have_in_common(
    layer_of, story, generator, kind, alike
):
    found = lag_one(drawn(story, layer_of("gpt2"), kind, generator))
    assert lag_one(story) > 0.7
    assert found > 0.55 if alike else abs(found) < 0.1


def test_itself_gives_what_is_measured_on_the_same_contexts(layer_of, story, generator):
    tally = tally_of(layer_of("gpt2"), story)
    found = sampled_closure(tally, "itself", generator=generator)
    assert found.log_change == pytest.approx(tally.attention_change, rel=1e-9)
