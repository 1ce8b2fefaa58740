"""Closures for directions: exact where the case can be solved, and wrong where they should be."""

import math
from dataclasses import replace

import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import InputError
from orbitlens.heads.layers import load_layer
from orbitlens.running.batches import Limits
from orbitlens.running.capture import LayerStates
from orbitlens.running.model import load
from orbitlens.tracing.api import trace
from orbitlens.tracing.attention_shares import AttentionShares
from orbitlens.tracing.direction_closures import DIRECTION_CLOSURES, Ground, steps_path
from orbitlens.tracing.drawn_contexts import drawn_directions, exact_steps
from orbitlens.tracing.forecast import (
    FORECASTS,
    drawn_batches,
    id_weights,
    measured_directions,
    ordinary_ids,
    weights_only_forecast,
)
from orbitlens.tracing.gaussian_scores import GaussianScores
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.position_points import PositionPoints
from orbitlens.tracing.replay import attention_drift
from orbitlens.tracing.tally import LayerTally
from orbitlens.tracing.tilted_steps import point_statistics
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
QUICK = TraceOptions(closures=("plain",), closure="plain", n_kept=64, flow_steps=1)


@pytest.fixture(scope="module")
def layer_of(tmp_path_factory):
    known = {}

    def get(name):
        if name not in known:
            folder = tmp_path_factory.mktemp(name)
            build(BY_NAME[name]).save_pretrained(folder)
            known[name] = load_layer(load_checkpoint(folder), 0)
        return known[name]

    return get


def tally_of(layer, contexts):
    """Sum up contexts as a run of the model would, attention recomputed from the weights."""
    tally = LayerTally(layer=layer, n_kept=10**6)
    drift = torch.stack([attention_drift(layer, x) for x in contexts])
    post_norm = contexts if layer.stack.norm is None else None
    tally.add(
        LayerStates(
            before=contexts,
            mixed=contexts.new_zeros(*contexts.shape[:2], layer.n_heads * layer.stack.d_head),
            projected=drift,
            attention=drift,
            after=contexts + drift,
            normed=post_norm,
            unnormed=post_norm,
        )
    )
    return tally


def truth(tally):
    contexts = torch.stack(tally.kept)
    return steps_path(tally, contexts, exact_steps(tally.layer, contexts))


def predicted(tally, name, seed=0):
    return DIRECTION_CLOSURES[name].predict(tally, torch.Generator().manual_seed(seed))


def without_scores(layer):
    return replace(layer, w_q=torch.zeros_like(layer.w_q), b_q=torch.zeros_like(layer.b_q))


def sharpened(layer, factor):
    return replace(layer, w_q=layer.w_q * factor, b_q=layer.b_q * factor)


def clouds(generator, count=4, n=32, d=24, size=1.0, shift=0.3):
    root = torch.randn(d, d, generator=generator, dtype=torch.float64) / math.sqrt(d)
    draws = torch.randn(count, n, d, generator=generator, dtype=torch.float64)
    return shift + size * draws @ root


# --- exact answers ---------------------------------------------------------------------------


def test_the_mean_is_exact_for_uniform_attention_and_not_for_sharp(layer_of, generator):
    contexts = clouds(generator, count=1)
    even = tally_of(without_scores(layer_of("bert")), contexts)
    assert predicted(even, "mean").shares == pytest.approx(truth(even).shares, abs=1e-12)
    sharp = tally_of(sharpened(layer_of("bert"), 60.0), contexts)
    gap = torch.tensor(predicted(sharp, "mean").shares) - torch.tensor(truth(sharp).shares)
    assert gap.abs().max() > 1e-4


@pytest.mark.parametrize(("v", "sign"), [(0.5, -1), (-0.2, 1)])
def test_a_value_map_that_keeps_the_shared_direction_gathers(layer_of, generator, v, sign):
    eye = torch.eye(24, dtype=torch.float64)
    plain = without_scores(layer_of("bert"))
    zero = {name: torch.zeros_like(getattr(plain, name)) for name in ("b_v", "b_o")}
    layer = replace(plain, w_v=eye, w_o=v * eye, **zero)
    tally = tally_of(layer, clouds(generator))
    assert math.copysign(1, predicted(tally, "mean").change) == sign
    assert math.copysign(1, truth(tally).change) == sign


def test_shares_are_exact_for_heads_that_look_at_one_sink(layer_of, generator):
    """Queries are constant and the first token's key lies far along them: attention is all its."""
    layer = layer_of("bert")
    layer = replace(layer, w_q=torch.zeros_like(layer.w_q), b_q=torch.ones_like(layer.b_q) * 5)
    contexts = clouds(generator)
    wanted = torch.ones(layer.w_k.shape[1], dtype=torch.float64) * 200
    contexts[:, 0] = wanted @ torch.linalg.pinv(layer.w_k.double())
    tally = tally_of(layer, contexts)
    exact = truth(tally).shares
    for name in ("shares", "three-points"):
        assert predicted(tally, name).shares == pytest.approx(exact, abs=1e-6)
    assert predicted(tally, "mean").shares != pytest.approx(exact, abs=1e-3)


def test_drawn_gaussian_tokens_do_as_gaussian_tokens_do(layer_of, generator):
    tally = tally_of(sharpened(layer_of("bert"), 30.0), clouds(generator, count=8, n=64))
    exact = truth(tally)
    drawn = predicted(tally, "gaussian")
    assert drawn.change == pytest.approx(exact.change, rel=0.15)
    assert drawn.shares == pytest.approx(exact.shares, abs=0.15 * abs(exact.change))
    assert predicted(tally, "gaussian", seed=1).shares != drawn.shares


@pytest.mark.parametrize("name", ["covariance", "frozen", "frozen-points", "three-points"])
def test_closed_forms_approach_gaussian_tokens_of_small_scores(layer_of, generator, name):
    tally = tally_of(sharpened(layer_of("bert"), 5.0), clouds(generator, count=4, n=128))
    exact = truth(tally)
    assert predicted(tally, name).change == pytest.approx(exact.change, rel=0.1)


def test_freezing_matters_where_attention_is_sharp(layer_of, generator):
    tally = tally_of(sharpened(layer_of("bert"), 400.0), clouds(generator, count=4, n=64))
    exact = truth(tally).change
    errors = {n: abs(predicted(tally, n).change - exact) for n in ("covariance", "frozen")}
    assert errors["frozen"] < errors["covariance"]


def test_a_token_that_only_sees_itself_takes_up_its_own_value(layer_of, generator):
    layer = layer_of("gpt2")
    seen = layer.normalise(clouds(generator, count=1)[0])
    first = torch.tensor([0])  # behind a causal mask it sees nothing else
    known = point_statistics(seen[None])
    scores = GaussianScores.of(layer, 0, known, first, len(seen), with_itself=True)
    answer = scores.answer(seen[first])
    head = layer.head(0)
    assert torch.allclose(answer.update, (seen[first] @ head.w_v + head.b_v) @ head.w_o)
    assert answer.loose.item() == pytest.approx(0.0, abs=1e-12)


# --- what they know --------------------------------------------------------------------------


def test_shares_of_attention_add_up_to_one(layer_of, generator):
    for name in ("bert", "gpt2"):
        layer = layer_of(name)
        shares = AttentionShares.of(layer, layer.normalise(clouds(generator)))
        total = shares.first + shares.last + shares.itself + shares.rest
        if name == "bert":
            total[:, -1] += 0  # the last token is itself
        assert torch.allclose(total, torch.ones_like(total), atol=1e-12)


def test_only_points_keep_a_token_that_never_changes(layer_of, generator):
    contexts = clouds(generator, count=12)
    contexts[:, 0] = 7 * torch.randn(24, generator=generator, dtype=torch.float64)
    tally = tally_of(layer_of("bert"), contexts)
    for points in (True, False):
        drawn = drawn_directions(tally, generator, points=points)
        cosine = torch.cosine_similarity(drawn[:, 0], contexts[:, 0], dim=-1)
        assert bool((cosine > 0.999).all()) is points


def test_positions_that_differ_by_chance_alone_are_no_points(generator):
    noise = torch.randn(20, 30, 40, generator=generator, dtype=torch.float64)
    by_chance = PositionPoints.of(noise).mean - noise.mean(dim=(0, 1))
    raw = noise.mean(dim=0) - noise.mean(dim=(0, 1))
    assert by_chance.norm() < 0.35 * raw.norm()
    noise[:, 3] += 5
    placed = PositionPoints.of(noise).mean
    assert torch.allclose(placed[3], noise[:, 3].mean(dim=0), atol=0.05)


def test_the_default_is_a_prediction_and_resampling_is_called_that():
    grounds = {name: closure.ground for name, closure in DIRECTION_CLOSURES.items()}
    assert grounds[DEFAULT_CLOSURE] is Ground.CLOSED_FORM
    assert grounds["words"] is grounds["chunks"] is Ground.RESAMPLED
    assert grounds["itself"] is Ground.CEILING
    options = TraceOptions()
    for name in options.direction_closures:
        assert grounds[name] in {Ground.CLOSED_FORM, Ground.SAMPLED}
    assert "chunks" not in options.closures


@pytest.mark.parametrize("name", ["llama-grouped", "gemma2", "bloom", "gptj"])
def test_every_closure_reads_every_kind_of_layer(layer_of, generator, name):
    layer = layer_of(name)
    width = layer.stack.d_model
    tally = tally_of(layer, clouds(generator, count=3, n=10, d=width))
    for closure in DIRECTION_CLOSURES:
        found = predicted(tally, closure)
        assert math.isfinite(found.change), closure
        assert sum(found.shares) == pytest.approx(found.change, abs=1e-9), closure


# --- from the weights alone ------------------------------------------------------------------


def forecast_limits(n=48):
    return Limits(context=12, batch=2, max_tokens=n)


def test_a_forecast_is_what_the_model_does_to_drawn_ids(model_folder):
    model = load(model_folder("llama-grouped"))
    rng = torch.Generator().manual_seed(0)
    found = weights_only_forecast(model, "embedding", limits=forecast_limits(), generator=rng)
    rng = torch.Generator().manual_seed(0)
    batches = list(drawn_batches(model, "embedding", forecast_limits(), rng))
    traced = trace(model, batches, options=QUICK)
    for layer in traced.layers:
        path = found[layer.stack, layer.layer]
        assert path.change == pytest.approx(layer.directions.attributed, abs=1e-6)
        assert path.shares[0] == pytest.approx(layer.directions.heads[0].share, abs=1e-6)
    again = measured_directions(model, batches)
    assert again["decoder", 0].change == pytest.approx(found["decoder", 0].change, abs=1e-12)


def test_drawn_ids_follow_their_law_and_leave_out_padding(model_folder):
    model = load(model_folder("llama-grouped"))
    even, zipf = (id_weights(law, model) for law in FORECASTS)
    assert even.min() == even.max()
    assert zipf[0] / zipf[9] == pytest.approx(10)
    assert model.module.config.pad_token_id not in ordinary_ids(model).tolist()


def test_a_model_of_images_has_no_forecast(model_folder):
    model = load(model_folder("vit"))
    rng = torch.Generator().manual_seed(0)
    assert weights_only_forecast(model, "embedding", limits=forecast_limits(), generator=rng) == {}


def test_a_trace_has_closures_forecasts_and_the_ceiling(model_folder):
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 39, (6, 12), generator=rng)
    traced = trace(load(model_folder("llama-grouped")), ids, options=QUICK)
    names = {*TraceOptions().direction_closures, *FORECASTS, "itself"}
    assert set(traced.direction_agreement.per_closure) == names
    assert set(traced.layers[0].directions.heads[0].predicted) == names


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (TraceOptions(direction_closures=("magic",)), "no closure 'magic'; expected mean"),
        (TraceOptions(direction_closures=("mean",)), "'three-points', which is not among"),
        (TraceOptions(forecasts=("dice",)), "no closure 'dice'; expected embedding"),
    ],
)
def test_closures_that_are_not_there_are_refused_before_anything_runs(options, message):
    with pytest.raises(InputError, match=message):
        trace("there is no such model", options=options)
