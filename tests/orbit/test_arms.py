"""The arms of arXiv 2512.03058 hold what they say, and means of values are means of values."""

import pytest
import torch

from orbit_models import SMALL, tiny, token_ids
from orbitlens.errors import InputError
from orbitlens.heads.refined import definite_map, n_negative, released_maps, theorem_reads
from orbitlens.lab.geometry import forward_signs
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.orbit.attention import Given
from orbitlens.orbit.averages import seen_mean
from orbitlens.orbit.refinements import ATTENTIONS
from orbitlens.orbit.switches import RELEASED, THEOREM
from orbitlens.scanning.api import scan

OTHERS = ("centred", "centred-fixed", "averaging")
RANK = 12  # of theorem heads: four of half the width have a plain layer's parameters


def config_of(refinement, **switches):
    return OrbitConfig(**{**SMALL, "refinement": refinement, **switches})


def fresh(refinement, **switches):
    torch.manual_seed(0)
    return OrbitForCausalLM(config_of(refinement, **switches))


def trained(refinement, *, n_steps=6):
    """Return a model after a few large steps, and yield nothing on the way."""
    model = fresh(refinement).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for step in range(n_steps):
        ids = token_ids(16, batch=8, seed=step)
        model(ids, targets=ids.roll(-1, 1)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def signs_of(model):
    """Return the signs of every head as a scan reads them."""
    return [head.alignment_signs for layer in scan(model).layers for head in layer.heads]


def symmetric_signs(matrix):
    values = torch.linalg.eigvalsh((matrix + matrix.mT) / 2)
    return int((values > 0).sum()), int((values < 0).sum())


# --- theorem ---------------------------------------------------------------------------------


@pytest.mark.parametrize("refinement", THEOREM)
@pytest.mark.parametrize("make", [fresh, trained])
def test_a_scan_finds_the_signs_of_theorem_heads_at_the_start_and_after_training(refinement, make):
    negative = n_negative(refinement, RANK)
    assert signs_of(make(refinement)) == [(RANK - negative, negative)] * 12


@pytest.mark.parametrize("refinement", THEOREM)
def test_theorem_maps_written_out_in_full_have_them_too(refinement):
    """By definition, with inverses: sym(W) >= 0, and sym(W V^+) of the signs asked for."""
    layer = trained(refinement).double().model.layers[1].self_attn
    negative = n_negative(refinement, RANK)
    reads = theorem_reads(layer.reading_map.weight, RANK)
    score = definite_map(layer.score_form.per_head())
    value = definite_map(layer.value_map.per_head(), negative=negative)
    for u, m, n in zip(reads, score, value, strict=True):
        w = u @ m @ u.T
        v = u @ n @ u.T @ u @ m @ u.T
        assert torch.linalg.eigvalsh((w + w.T) / 2).min() > -1e-12
        on_range = torch.linalg.qr(u)[0]
        a = on_range.T @ w @ torch.linalg.pinv(v, rtol=1e-10) @ on_range
        assert symmetric_signs(a) == (RANK - negative, negative)


def test_plain_heads_have_neither_sign():
    positive, negative = zip(*signs_of(fresh("none")), strict=True)
    assert min(positive) > 0 and min(negative) > 0


@pytest.mark.parametrize("refinement", [*RELEASED, *THEOREM, "centred-fixed", "averaging"])
def test_arms_have_as_many_parameters_as_a_plain_model(refinement):
    def count(name):
        return sum(p.numel() for p in fresh(name, norm="post").parameters())

    assert count(refinement) == count("none")


def test_learned_centring_has_one_more_a_head():
    def count(name):
        return sum(p.numel() for p in fresh(name).parameters())

    assert count("centred") == count("none") + 12


@pytest.mark.parametrize("refinement", [*RELEASED, *THEOREM, *OTHERS])
def test_gradients_reach_every_parameter(refinement):
    model = fresh(refinement).train()
    model(token_ids(), targets=token_ids(seed=8)).loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad.abs().max() > 0, name


def test_theorem_arms_refuse_a_rotation():
    with pytest.raises(InputError, match="is made for the encoding"):
        config_of("theorem-half", position="rotary")


# --- released --------------------------------------------------------------------------------


@pytest.mark.parametrize("refinement", RELEASED)
def test_released_layers_hold_their_signs_for_stored_matrices(refinement):
    layer = trained(refinement).double().model.layers[0].self_attn
    q, k, v = released_maps(*layer.qkv_proj.weight.chunk(3), negative=layer.qkv_proj.negative)
    negative = n_negative(refinement, 24)
    w = q @ k.T
    assert symmetric_signs(w) == (24, 0)
    assert symmetric_signs(w @ torch.linalg.inv(v)) == (24 - negative, negative)


@pytest.mark.parametrize("refinement", ["released-positive", "released-negative"])
def test_the_maps_that_released_layers_apply_do_not_have_them(refinement):
    """What scores tokens is Q^T K = Q^T W^T Q^-T: similar to W^T, not congruent to it."""
    layer = tiny(refinement=refinement).model.layers[0].self_attn  # far from orthogonal
    q, k, v = released_maps(*layer.qkv_proj.weight.chunk(3), negative=layer.qkv_proj.negative)
    x = torch.randn(1, 5, 24, dtype=torch.float64)
    queries, keys, values = layer.qkv_proj(x).chunk(3, dim=-1)
    w = q.T @ k
    torch.testing.assert_close(queries @ keys.mT, x @ w @ x.mT)
    torch.testing.assert_close(values, x @ v.T)
    positive, negative = symmetric_signs(w @ torch.linalg.inv(v))
    assert min(positive, negative) >= 4
    similar = q.T @ (q @ k.T).T @ torch.linalg.inv(q).T
    torch.testing.assert_close(w, similar)


@pytest.mark.parametrize("refinement", RELEASED)
def test_a_scan_and_the_log_read_a_released_model_alike(refinement):
    model = trained(refinement)
    logged = forward_signs(model)
    for layer, share, size in zip(
        scan(model).layers, logged["positive"], logged["value_norm"], strict=True
    ):
        positive = sum(head.alignment_signs[0] for head in layer.heads)
        assert share == pytest.approx(positive / 24)
        assert size == pytest.approx(sum(head.ov_norm for head in layer.heads) / 4)


def test_heads_that_cannot_be_read_have_no_signs():
    assert forward_signs(fresh("centred")) is None


# --- means of values -------------------------------------------------------------------------


def test_a_mean_is_over_what_a_query_may_see():
    v = torch.randn(2, 4, 5, 6, dtype=torch.float64)
    running = torch.stack([v[:, :, : k + 1].mean(dim=2) for k in range(5)], dim=2)
    torch.testing.assert_close(seen_mean(v, Given(causal=True), 5), running)
    everything = v.mean(dim=2, keepdim=True).expand(-1, -1, 5, -1)
    torch.testing.assert_close(seen_mean(v, Given(), 5), everything)
    hidden = torch.full((5, 5), torch.finfo(torch.float64).min, dtype=torch.float64).triu(1)
    slopes = torch.randn(4, 5, 5, dtype=torch.float64)
    masked = Given(bias=(slopes + hidden)[None])
    torch.testing.assert_close(seen_mean(v, masked, 5), running)


def test_centred_attention_takes_the_running_mean_away():
    model = tiny(refinement="centred", norm="none")
    layer, x = model.model.layers[0].self_attn, torch.randn(1, 7, 24, dtype=torch.float64)
    added, pattern = layer(x, Given(causal=True, patterns=True))
    v = (x @ layer.qkv_proj.weight[48:].T).unflatten(-1, (4, 6)).transpose(1, 2)
    even = torch.ones(7, 7, dtype=torch.float64).tril()
    even = even / even.sum(dim=1, keepdim=True)
    alpha = layer.centring.weight[:, None, None]
    mixed = (pattern[0] - alpha * even) @ v[0]
    expected = mixed.transpose(0, 1).flatten(1) @ layer.o_proj.weight.T
    torch.testing.assert_close(added[0], expected)
    assert ATTENTIONS["centred"](model.config).centring.weight.abs().max() == 0


def test_an_averaging_model_ignores_the_order_of_what_it_has_seen():
    model = tiny(refinement="averaging", position="none")
    ids = token_ids()
    swapped = ids[:, [1, 0, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    # One layer: deeper ones see that the first two tokens had other pasts.
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    same = model(swapped).logits[:, 2:] - model(ids).logits[:, 2:]
    assert same.abs().max() < 1e-12
    plain = tiny(position="none", num_hidden_layers=1)
    assert (plain(swapped).logits[:, 2:] - plain(ids).logits[:, 2:]).abs().max() < 1e-12


@pytest.mark.parametrize("refinement", [*RELEASED, *THEOREM, *OTHERS])
def test_an_arm_runs_with_a_cache_as_without(refinement):
    model = tiny(refinement=refinement)
    ids = token_ids()
    start = model(ids[:, :6], use_cache=True)
    rest = model(ids[:, 6:], past_key_values=start.past_key_values)
    parts = torch.cat([start.logits, rest.logits], dim=1)
    torch.testing.assert_close(parts, model(ids).logits, rtol=0, atol=1e-9)
