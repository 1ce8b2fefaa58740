"""Directions: mean cosine, its change, and the parts of that change."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from orbitlens.running.model import load
from orbitlens.tracing.api import trace
from orbitlens.tracing.directions import (
    CosineSums,
    PathSums,
    centre,
    context_ranks,
    log_spread,
    unit_directions,
)
from orbitlens.tracing.massive import MASSIVE, MassiveSums
from orbitlens.tracing.options import TraceOptions

QUICK = TraceOptions(closures=("plain",), closure="plain", n_kept=4096, flow_steps=1)
SHARED_TEXT = Path(__file__).resolve().parents[3] / "shared" / "data" / "wikitext2_test.txt"


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def slow_cosine(batch):
    total, n = 0.0, 0
    for context in batch:
        for i in range(len(context)):
            for j in range(len(context)):
                if i != j:
                    total += float(torch.cosine_similarity(context[i], context[j], dim=0))
                    n += 1
    return total / n


def path(x, parts):
    sums = PathSums(len(parts))
    sums.add(x, parts)
    return sums


def test_the_mean_cosine_is_that_of_all_pairs_pooled_over_contexts():
    sums = CosineSums()
    first, second = tokens(3, 5, 7), tokens(2, 4, 7, seed=1)
    sums.add(first)
    sums.add(second)
    n = [3 * 5 * 4, 2 * 4 * 3]
    slow = (slow_cosine(first) * n[0] + slow_cosine(second) * n[1]) / sum(n)
    assert sums.value == pytest.approx(slow, abs=1e-13)
    assert sums.log_spread == pytest.approx(math.log(1 - slow), abs=1e-12)


def test_half_the_mean_squared_distance_of_directions_is_one_minus_c():
    x = tokens(1, 6, 5)
    y = unit_directions(x)[0]
    pairs = [(y[i] - y[j]).square().sum().item() for i in range(6) for j in range(6) if i != j]
    sums = CosineSums()
    sums.add(x)
    assert sum(pairs) / len(pairs) / 2 == pytest.approx(1 - sums.value, abs=1e-13)


@pytest.mark.parametrize("size", [0.01, 1.0, 10.0, 100.0])
def test_parts_sum_to_the_whole_whatever_the_size_of_the_step(size):
    x, parts = tokens(2, 12, 16), size * tokens(5, 2, 12, 16, seed=1)
    sums = path(x, parts)
    assert sum(sums.shares) == pytest.approx(sums.change, abs=1e-10)


def test_batches_add_up_to_the_whole_text():
    x, parts = tokens(4, 6, 8), tokens(3, 4, 6, 8, seed=1)
    whole, halves = path(x, parts), PathSums(3)
    halves.add(x[:2], parts[:, :2])
    halves.add(x[2:], parts[:, 2:])
    assert halves.shares == pytest.approx(whole.shares, abs=1e-13)
    assert halves.change == pytest.approx(whole.change, abs=1e-13)


def test_a_small_step_has_the_first_order_change_of_autograd():
    x, parts = tokens(1, 7, 9), 1e-5 * tokens(2, 1, 7, 9, seed=1)
    moved = x.clone().requires_grad_()
    y = moved / moved.norm(dim=-1, keepdim=True)
    cosine = (y.sum(dim=1).square().sum() - 7) / 42
    (slope,) = torch.autograd.grad(torch.log1p(-cosine), moved)
    wanted = [(slope * part).sum().item() for part in parts]
    assert path(x, parts).shares == pytest.approx(wanted, rel=1e-3)


def test_a_part_that_only_lengthens_tokens_has_no_share():
    x = tokens(2, 6, 8)
    parts = torch.stack([0.7 * x, tokens(2, 6, 8, seed=3)])
    lone = path(x, 0.7 * x[None])
    assert lone.shares[0] == pytest.approx(0.0, abs=1e-12)
    assert lone.change == pytest.approx(0.0, abs=1e-12)
    assert path(x, parts).shares[1] != pytest.approx(0.0, abs=1e-3)


def test_a_shared_vector_gathers_and_its_opposite_spreads():
    x = tokens(1, 20, 30) + 1.0
    shared = x.mean(dim=1, keepdim=True).expand_as(x)
    gathers, spreads = path(x, shared[None]), path(x, -0.5 * shared[None])
    assert gathers.change < 0 < spreads.change
    assert gathers.effects_alone[0] == pytest.approx(gathers.change, abs=1e-12)


def test_turning_all_tokens_together_changes_nothing():
    x, parts = tokens(2, 6, 8), tokens(3, 2, 6, 8, seed=1)
    turn = torch.linalg.qr(tokens(8, 8, seed=5)).Q
    assert path(x @ turn, parts @ turn).shares == pytest.approx(path(x, parts).shares, abs=1e-12)


def test_equiangular_tokens_follow_the_closed_form():
    """Adding v times the mean keeps all pairs at one cosine: C' by hand."""
    n, d, v, c = 6, 6, 0.8, 0.3
    gram = torch.full((n, d), c, dtype=torch.float64) + (1 - c) * torch.eye(n, dtype=torch.float64)
    x = torch.linalg.cholesky(gram)[None]
    moved = path(x, v * x.mean(dim=1, keepdim=True).expand_as(x)[None])
    mean = (1 + (n - 1) * c) / n  # x_i . mean, and |mean|^2 too
    inner = c + 2 * v * mean + v**2 * mean
    length = 1 + 2 * v * mean + v**2 * mean
    assert moved.before.value == pytest.approx(c, abs=1e-12)
    assert moved.after.value == pytest.approx(inner / length, abs=1e-12)


def test_centring_takes_the_mean_coordinate_away():
    x = tokens(2, 3, 5)
    assert centre(x + 4.2).sub(centre(x)).abs().max() < 1e-14


def test_a_token_of_length_zero_has_no_direction_and_breaks_nothing():
    x = tokens(1, 4, 3)
    x[0, 2] = 0
    sums = CosineSums()
    sums.add(x)
    assert math.isfinite(sums.log_spread)
    assert log_spread(1.0) == -math.inf


def test_massive_tokens_are_found_by_position_and_none_elsewhere():
    x = tokens(4, 16, 8)
    plain, planted = MassiveSums(), MassiveSums()
    plain.add(x)
    x[:, 0] *= 100 * MASSIVE
    planted.add(x)
    assert plain.tokens == ()
    (token,) = planted.tokens
    assert (token.position, token.share) == (0, 1.0)
    assert token.ratio > MASSIVE


# --- in a trace ------------------------------------------------------------------------------


def ids(n_contexts=6, n_tokens=12):
    rng = torch.Generator().manual_seed(0)
    return torch.randint(3, 39, (n_contexts, n_tokens), generator=rng)


@pytest.mark.parametrize("name", ["llama-grouped", "gpt2", "bert", "gptj", "gemma2", "olmo2"])
def test_parts_of_a_block_add_up_to_its_change_and_heads_to_attention(model_folder, name):
    traced = trace(load(model_folder(name)), ids(), options=QUICK)
    for layer in traced.layers:
        here = layer.directions
        total = log_spread(here.cosine_after) - log_spread(here.cosine_before)
        assert here.attention + here.mlp + here.norm == pytest.approx(total, abs=1e-10)
        heads = sum(head.share for head in here.heads) + here.rest
        assert heads == pytest.approx(here.attributed, abs=1e-10)
        assert here.attributed == pytest.approx(here.attention, abs=1e-5)  # all tokens, here
    for layer, following in zip(traced.layers, traced.layers[1:], strict=False):
        after, before = layer.directions.cosine_after, following.directions.cosine_before
        assert after == pytest.approx(before, abs=1e-6)


def test_the_mean_cosine_is_that_of_the_models_own_states(model_folder):
    model = load(model_folder("llama-grouped"))
    traced = trace(model, ids(), options=QUICK)
    with torch.no_grad():
        states = model.module(ids(), output_hidden_states=True).hidden_states
    for layer, state in zip(traced.layers, states, strict=False):
        assert layer.directions.cosine_before == pytest.approx(slow_cosine(state), abs=1e-5)


def test_a_planted_massive_token_is_reported_and_left_out(model_folder):
    model = load(model_folder("llama-grouped"))
    plain = trace(model, ids(), options=QUICK).layers[0].directions
    planted_id = int(ids()[0, 0])
    rows = ids()
    rows[:, 0] = planted_id
    rows[:, 1:][rows[:, 1:] == planted_id] = 40 - 1
    reference = trace(model, rows[:, 1:], options=QUICK).layers[0].directions
    with torch.no_grad():
        model.module.get_input_embeddings().weight[planted_id] *= 1000
    planted = trace(model, rows, options=QUICK).layers[0].directions
    assert plain.massive == ()
    assert [token.position for token in planted.massive] == [0]
    assert planted.cosine_without_massive == pytest.approx(reference.cosine_before, abs=1e-6)


def test_a_trace_tells_directions_in_a_table(model_folder):
    traced = trace(load(model_folder("gpt2")), ids(), options=QUICK)
    table = traced.to_pandas()
    for column in ("layer", "part", "log_change", "raw_log_change", "predicted", "cosine_before",
                   "cosine_after"):  # fmt: skip
        assert column in table.columns
    first = table[(table.layer == 0) & (table.part == "attention")].iloc[0]
    assert first.log_change == traced.layers[0].directions.attention


@pytest.mark.parametrize("name", ["llama-grouped", "bert"])
def test_each_row_has_the_cosines_around_its_part(model_folder, name):
    traced = trace(load(model_folder(name)), ids(), options=QUICK)
    for row in traced.to_pandas().itertuples():
        change = row.alone if row.part.startswith("head") else row.log_change
        if row.part == "norm" and name == "bert":  # at two places of the block
            assert math.isnan(row.cosine_before)
            continue
        around = log_spread(row.cosine_after) - log_spread(row.cosine_before)
        assert change == pytest.approx(around, abs=1e-10)
    parts = traced.to_pandas().groupby(["layer", "part"]).log_change.sum()
    for layer in traced.layers:
        whole = sum(parts[layer.layer, part] for part in ("attention", "mlp", "norm"))
        first, last = layer.directions.points[0], layer.directions.points[-1]
        assert whole == pytest.approx(last.log_spread - first.log_spread, abs=1e-10)


def test_raw_moments_are_what_tokens_share_and_what_each_has_alone(model_folder):
    model = load(model_folder("llama-grouped"))
    traced = trace(model, ids(), options=QUICK)
    with torch.no_grad():
        states = model.module(ids(), output_hidden_states=True).hidden_states
    for layer, state in zip(traced.layers, states, strict=False):
        x = state.double()
        products = x @ x.transpose(1, 2)
        n = x.shape[1]
        own = products.diagonal(dim1=1, dim2=2)
        shared = (products.sum() - own.sum()) / (x.shape[0] * n * (n - 1))
        point = layer.directions.points[0]
        assert point.shared == pytest.approx(shared.item(), rel=1e-5)
        assert point.own == pytest.approx((own.mean() - shared).item(), rel=1e-5)
        distance = layer.metrics["mean_squared_distance"]
        assert 2 * point.own == pytest.approx(distance, rel=1e-5)


def test_rank_and_clusters_are_those_of_the_directions_of_a_context():
    one = torch.ones(6, 1, dtype=torch.float64) @ torch.randn(1, 4, dtype=torch.float64)
    apart = torch.diag(torch.arange(1.0, 5.0, dtype=torch.float64))  # lengths do not matter
    assert context_ranks([one]) == pytest.approx((1.0, 1.0), abs=1e-3)
    assert context_ranks([apart]) == pytest.approx((4.0, 4.0))
    assert context_ranks([one, apart]) == pytest.approx((2.5, 2.5), abs=1e-3)


def test_tokens_are_followed_one_by_one_where_asked(model_folder):
    model = load(model_folder("llama-grouped"))
    plain = trace(model, ids(), options=QUICK)
    asked = trace(model, ids(), options=replace(QUICK, by_token=True))
    assert plain.tokens == ()
    with torch.no_grad():
        states = model.module(ids()[:1], output_hidden_states=True).hidden_states
    y = torch.nn.functional.normalize(states[1][0].double(), dim=-1)
    cosines = y @ y.T
    for token in asked.tokens:
        others = (cosines[token.position].sum() - 1) / (len(y) - 1)
        assert token.name == str(int(ids()[0, token.position]))
        assert token.cosines[1] == pytest.approx(others.item(), abs=1e-5)
        assert len(token.cosines) == len(asked.layers) + 1
    mean = sum(token.cosines[1] for token in asked.tokens) / len(asked.tokens)
    assert mean == pytest.approx(((cosines.sum() - len(y)) / (len(y) * (len(y) - 1))).item())


def test_a_real_decoder_gathers_directions_by_the_numbers_of_the_theory(shared_model):
    if not SHARED_TEXT.exists():
        pytest.skip(f"real data is not beside the checkout: {SHARED_TEXT}")
    model = load(shared_model("stories260K-llama-hf"))
    text = SHARED_TEXT.read_text(encoding="utf-8")[:40_000]
    row = model.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"][:1024]
    traced = trace(model, torch.tensor(row).view(-1, 128), options=QUICK)
    measured = [layer.directions for layer in traced.layers]
    attention = [-0.120, 0.000, -0.055, -0.140, -0.212]
    mlps = [0.003, 0.006, 0.003, -0.020, -0.111]
    assert [here.attention for here in measured] == pytest.approx(attention, abs=0.002)
    assert [here.mlp for here in measured] == pytest.approx(mlps, abs=0.002)
    assert "gathers directions in layers 0, 2–4" in traced.summary()
    # Raw distances say the opposite: that is why directions come first.
    assert all(layer.attention.measured_log_change > 0 for layer in traced.layers)
