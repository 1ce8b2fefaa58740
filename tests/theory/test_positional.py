"""Positions: offsets turn the score map, contexts damp rates, absolute positions pull as points."""

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing, Position, RotarySpec
from orbitlens.heads.rotary import resolve_rotary, rotate, rotation_matrix
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.positional import (
    frequency_energy,
    maps_at_offset,
    maps_in_context,
    positional_drift,
    rotary_effect,
)
from orbitlens.theory.rates import head_rates
from random_heads import (
    PROPERTY,
    SEEDS,
    dense_rates,
    dense_score,
    dense_value,
    in_basis,
    normal,
    orthogonal,
    random_covariance,
    random_head,
    seeded,
    symmetric_part,
    zero_head,
)


def rotary(d_head, *, base=50.0, d_rotary=None, pairing=Pairing.HALVES, **more):
    width = d_head if d_rotary is None else d_rotary
    return RotarySpec(base=base, d_rotary=width, d_head=d_head, pairing=pairing, **more)


def rotary_head(d, r, seed, *, causal=True, window=None, **spec):
    head = random_head(d, r, seed, causal=causal, window=window)
    return dataclasses.replace(head, rotary=rotary(r, **spec), position=Position.ROTARY)


YARN = {
    "kind": "yarn",
    "parameters": {"factor": 8.0, "original_max_position_embeddings": 64},
}
WIDTHS = st.tuples(st.integers(1, 9), st.integers(1, 4).map(lambda pairs: 2 * pairs))


def dense_score_at(head, offset, n_context=None):
    resolved = resolve_rotary(head.rotary, n_context or abs(offset) + 1)
    return head.w_q @ rotation_matrix(resolved, float(offset)) @ head.w_k.T * head.scale


def score_of(maps):
    return maps.left @ maps.right.T


# --- offsets ---------------------------------------------------------------------------------


@PROPERTY
@given(WIDTHS, SEEDS, st.integers(-60, 60), st.sampled_from(Pairing))
def test_maps_at_an_offset_are_those_of_the_turned_score_map(widths, seed, offset, pairing):
    head = rotary_head(*widths, seed, pairing=pairing)
    maps = maps_at_offset(head, offset)
    assert (score_of(maps) - dense_score_at(head, offset)).abs().max() < 1e-12
    assert torch.equal(maps.out @ maps.value.T, HeadMaps.of(head).out @ head.w_v.T)


@PROPERTY
@given(WIDTHS, SEEDS, st.booleans())
def test_offset_zero_is_the_head_itself(widths, seed, with_factor):
    head = rotary_head(*widths, seed, **(YARN if with_factor else {}))
    here, plain = maps_at_offset(head, 0), HeadMaps.of(head)
    for name in ("left", "right", "out", "value"):
        assert torch.equal(getattr(here, name), getattr(plain, name))


def test_another_offset_is_another_map():
    head = rotary_head(6, 4, 0)
    assert (score_of(maps_at_offset(head, 1)) - dense_score(head)).abs().max() > 0.1
    forth, back = (score_of(maps_at_offset(head, m)) for m in (2, -2))
    assert (forth - back).abs().max() > 0.1


def test_offset_zero_carries_the_squared_attention_factor():
    head = rotary_head(6, 4, 0, **YARN)
    factor = resolve_rotary(head.rotary, 8).factor
    assert factor > 1.1
    ratio = score_of(maps_at_offset(head, 0)) / dense_score(head)
    assert torch.allclose(ratio, torch.full_like(ratio, factor**2), rtol=1e-9)


def test_the_context_sets_the_frequencies_of_scalings_that_depend_on_it():
    head = rotary_head(6, 8, 0, kind="dynamic", parameters={"factor": 2.0}, max_positions=16)
    near, far = (score_of(maps_at_offset(head, 3, n_context=n)) for n in (16, 64))
    assert (near - far).abs().max() > 1e-2
    assert (far - dense_score_at(head, 3, n_context=64)).abs().max() < 1e-12


# --- contexts --------------------------------------------------------------------------------


@PROPERTY
@given(WIDTHS, SEEDS, st.integers(1, 12), st.booleans())
def test_maps_in_a_context_average_the_score_map_over_its_offsets(widths, seed, n, causal):
    head = rotary_head(*widths, seed, causal=causal)
    offsets = range(n) if causal else [i - j for i in range(n) for j in range(n)]
    expected = torch.stack([dense_score_at(head, m, n) for m in offsets]).mean(dim=0)
    assert (score_of(maps_in_context(head, n)) - expected).abs().max() < 1e-11


def test_a_window_shortens_the_context():
    head = rotary_head(6, 4, 0, window=3)
    free = dataclasses.replace(head, window=None)
    assert torch.equal(maps_in_context(head, 20).left, maps_in_context(free, 3).left)
    assert (maps_in_context(head, 20).left - maps_in_context(free, 20).left).abs().max() > 1e-2


@pytest.mark.parametrize("causal", [True, False])
def test_for_small_scores_rotary_attention_moves_tokens_by_the_averaged_map(causal):
    """The drift of real rotary attention equals V S W'^T x to first order in the scores."""
    d, n, copies = 4, 7, 60
    head = rotary_head(d, 4, 3, causal=causal)
    head = dataclasses.replace(head, w_q=1e-4 * head.w_q)
    source = seeded(4)
    covariance = random_covariance(source, d)
    content = torch.stack([with_exact_moments(source, copies, covariance) for _ in range(n)])
    x, resolved = normal(source, d), resolve_rotary(head.rotary, n)
    keys = rotate((content @ head.w_k).transpose(0, 1), resolved)  # copies, positions, width
    queries = rotate((x @ head.w_q * head.scale).expand(n, -1), resolved)
    drifts = []
    for i in [n - 1] if causal else range(n):
        weights = (keys @ queries[i]).flatten().softmax(dim=0)
        drifts.append(weights @ content.transpose(0, 1).flatten(0, 1) @ head.w_v @ head.w_o)
    measured = torch.stack(drifts).mean(dim=0)
    predicted = dense_value(head) @ covariance @ score_of(maps_in_context(head, n)).T @ x
    unturned = dense_value(head) @ covariance @ dense_score(head).T @ x
    assert (measured - predicted).norm() < 1e-2 * predicted.norm()
    assert (measured - unturned).norm() > 0.1 * predicted.norm()


def with_exact_moments(source, n, covariance):
    """Return n Gaussian draws moved and stretched so that mean and covariance are exact."""
    x = normal(source, n, covariance.shape[0])
    x = x - x.mean(dim=0)
    whitened = x @ torch.linalg.inv(torch.linalg.cholesky(x.T @ x / n)).T
    return whitened @ torch.linalg.cholesky(covariance).T


# --- what survives ---------------------------------------------------------------------------


@PROPERTY
@given(WIDTHS, SEEDS, st.booleans(), st.booleans())
def test_a_context_of_one_token_leaves_every_rate(widths, seed, causal, with_factor):
    head = rotary_head(*widths, seed, causal=causal, **(YARN if with_factor else {}))
    effect = rotary_effect(head, 1)
    assert effect.size_survival == pytest.approx(1.0, rel=1e-9)
    assert (effect.rate_survival - 1).abs().max() < 1e-6
    factor = resolve_rotary(head.rotary, 1).factor
    largest = dense_rates([head])[-1].item()
    assert effect.rates.largest == pytest.approx(factor**2 * largest, rel=1e-9)
    assert head_rates(head).largest == pytest.approx(effect.rates.largest, rel=1e-9)


@pytest.mark.parametrize("causal", [True, False])
def test_fast_frequencies_leave_nothing_of_a_long_context(causal):
    head = rotary_head(12, 4, 0, causal=causal, base=2.0)
    survival = [rotary_effect(head, n).size_survival for n in (1, 30, 1000, 30_000)]
    assert survival == sorted(survival, reverse=True)
    assert survival[-1] < 1e-3
    assert rotary_effect(head, 30_000).rate_survival.abs().max() < 1e-3


def test_slow_frequencies_and_unturned_parts_survive_a_long_context():
    slow = rotary_head(12, 8, 0, base=1e12)  # all planes but the first hardly turn
    assert rotary_effect(slow, 500).size_survival > 0.5
    partial = rotary_head(12, 8, 0, base=2.0, d_rotary=2)
    assert rotary_effect(partial, 30_000).size_survival > 0.5
    full = rotary_head(12, 8, 0, base=2.0)
    assert rotary_effect(full, 30_000).size_survival < 1e-3


def test_a_context_can_raise_a_rate_where_planes_cancelled_each_other():
    """Averaging damps each plane's share of W, but not their sum: what was hidden comes out."""
    head = rotary_head(8, 4, 0, base=1e8)  # planes (0, 2) fast and (1, 3) slow
    columns = {"w_q": head.w_q[:, [1, 1, 3, 3]].clone(), "w_k": head.w_k[:, [1, 1, 3, 3]].clone()}
    columns["w_q"][:, [0, 2]] *= -0.9  # W = W_slow - 0.9 W_slow at offset 0
    hidden = dataclasses.replace(head, **columns)
    assert rotary_effect(hidden, 1).size_survival == pytest.approx(1.0)
    assert rotary_effect(hidden, 500).size_survival == pytest.approx(10.0, rel=0.05)


@PROPERTY
@given(WIDTHS, SEEDS, st.integers(1, 30), st.booleans())
def test_the_effect_equals_its_dense_computation(widths, seed, n, with_covariance):
    head = rotary_head(*widths, seed)
    s = torch.eye(head.d_model, dtype=torch.float64)
    if with_covariance:
        s = random_covariance(seeded(seed), head.d_model)
    v, kept = dense_value(head), score_of(maps_in_context(head, n))
    before = symmetric_part(v @ s @ dense_score(head).T)
    after = symmetric_part(v @ s @ kept.T)
    rates, directions = torch.linalg.eigh(before)
    matters = rates.abs() > 1e-8 * rates.abs().max()
    left = torch.einsum("ik,ij,jk->k", directions, after, directions)
    effect = rotary_effect(head, n, s if with_covariance else None)
    around = torch.linalg.eigvalsh(after)
    assert effect.rates.smallest == pytest.approx(
        around[0].item(), abs=1e-10 * before.norm().item()
    )
    assert effect.size_survival == pytest.approx(
        (around.abs().sum() / rates.abs().sum()).item(), rel=1e-9
    )
    expected = (left / rates)[matters]
    assert effect.rate_survival.shape == expected.shape
    assert (effect.rate_survival - expected).abs().max() < 1e-5
    cosine = (v * kept).sum() / (v.norm() * kept.norm())
    assert effect.alignment == pytest.approx(cosine.item(), abs=1e-9)


@PROPERTY
@given(WIDTHS, SEEDS, st.integers(1, 30))
def test_a_rotation_of_the_token_basis_changes_no_survival(widths, seed, n):
    head = rotary_head(*widths, seed)
    turned = in_basis(head, orthogonal(seeded(seed + 1), head.d_model))
    first, second = rotary_effect(head, n), rotary_effect(turned, n)
    assert first.size_survival == pytest.approx(second.size_survival, rel=1e-9)
    assert first.alignment == pytest.approx(second.alignment, abs=1e-9)
    gap = (frequency_energy(head) - frequency_energy(turned)).abs().max()
    assert gap < 1e-12


def test_a_zero_head_survives_whole_and_without_nan():
    head = dataclasses.replace(zero_head(6, 4), rotary=rotary(4), position=Position.ROTARY)
    effect = rotary_effect(head, 10)
    assert (effect.size_survival, effect.alignment, effect.rates.size) == (1.0, 0.0, 0.0)
    assert effect.rate_survival.numel() == 0
    assert frequency_energy(head).tolist() == [0.0, 0.0]


# --- energy per frequency --------------------------------------------------------------------


def plane(k, r, pairing):
    return [k, k + r // 2] if pairing is Pairing.HALVES else [2 * k, 2 * k + 1]


@PROPERTY
@given(WIDTHS, SEEDS, st.sampled_from(Pairing))
def test_energy_per_frequency_is_each_planes_share_of_the_score_map(widths, seed, pairing):
    d, r = widths
    head = rotary_head(d, r, seed, pairing=pairing)
    planes = [plane(k, r, pairing) for k in range(r // 2)]
    parts = torch.stack([head.w_q[:, p] @ head.w_k[:, p].T * head.scale for p in planes])
    squares = parts.square().sum(dim=(1, 2))
    energy = frequency_energy(head)
    assert energy.sum().item() == pytest.approx(1.0, rel=1e-12)
    assert (energy - squares / squares.sum()).abs().max() < 1e-12
    assert (parts.sum(dim=0) - dense_score(head)).abs().max() < 1e-12  # the planes make up W


def test_energy_tells_the_pairings_apart_and_finds_a_single_plane():
    head = rotary_head(6, 8, 0)
    other = dataclasses.replace(head, rotary=rotary(8, pairing=Pairing.NEIGHBOURS))
    assert (frequency_energy(head) - frequency_energy(other)).abs().max() > 1e-2
    keep = torch.zeros(8, dtype=torch.float64)
    keep[plane(2, 8, Pairing.HALVES)] = 1.0
    alone = dataclasses.replace(head, w_q=head.w_q * keep)
    assert frequency_energy(alone).tolist() == [0.0, 0.0, 1.0, 0.0]


def test_energy_of_a_partly_turned_head_leaves_the_rest_to_the_unturned_part():
    head = rotary_head(6, 8, 1, d_rotary=4)
    rest = (head.w_q[:, 4:] @ head.w_k[:, 4:].T * head.scale).square().sum()
    planes = [
        (head.w_q[:, p] @ head.w_k[:, p].T * head.scale).square().sum() for p in ([0, 2], [1, 3])
    ]
    energy = frequency_energy(head)
    expected = torch.stack(planes) / (sum(planes) + rest)
    assert (energy - expected).abs().max() < 1e-12
    assert energy.sum() < 0.9


# --- absolute positions ----------------------------------------------------------------------


def biased_head(seed):
    head = random_head(3, 3, seed, sizes=(0.7, 0.7, 0.8, 0.8))
    return dataclasses.replace(head, b_q=1.5 * normal(seeded(seed + 1), 3))


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_drift_of_positions_is_what_attention_adds_to_the_content(seed):
    """Tokens are Gaussian content around points; what content alone would do is taken away."""
    head, source = biased_head(seed), seeded(seed + 10)
    points, covariance = normal(source, 4, 3), 0.3 * random_covariance(source, 3)
    root = torch.linalg.cholesky(covariance)
    tokens = (points[:, None] + normal(source, 4, 40_000, 3) @ root.T).flatten(0, 1)
    queries = normal(source, 6, 3)
    forms = queries @ dense_score(head) + head.scale * (head.w_k @ head.b_q)
    update = (forms @ tokens.T).softmax(dim=-1) @ tokens @ dense_value(head).T
    content = forms @ covariance @ dense_value(head).T
    predicted = positional_drift(head, points, queries)
    assert (update - content - predicted).norm() < 0.02 * predicted.norm()
    # Negative controls: uniform pull of all points, and the query bias left out.
    uniform = points.mean(dim=0) @ dense_value(head).T
    assert (update - content - uniform).norm() > 0.1 * predicted.norm()
    without = positional_drift(dataclasses.replace(head, b_q=0 * head.b_q), points, queries)
    assert (update - content - without).norm() > 0.04 * predicted.norm()


def test_one_position_pulls_every_token_alike():
    head, points = random_head(5, 2, 0), normal(seeded(1), 1, 5)
    drift = positional_drift(head, points, normal(seeded(2), 4, 5))
    assert (drift - points @ dense_value(head).T).abs().max() < 1e-12


@PROPERTY
@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), SEEDS)
def test_the_drift_turns_with_the_basis_and_ignores_the_order_of_positions(d, r, n, seed):
    head, source = random_head(d, r, seed), seeded(seed + 1)
    points, tokens, q = normal(source, n, d), normal(source, 3, d), orthogonal(source, d)
    drift = positional_drift(head, points, tokens)
    turned = positional_drift(in_basis(head, q), points @ q, tokens @ q)
    assert (turned - drift @ q).abs().max() < 1e-10
    assert (positional_drift(head, points.flip(0), tokens) - drift).abs().max() < 1e-10


@PROPERTY
@given(st.integers(1, 6), st.integers(1, 6), SEEDS, st.floats(-5, 5))
def test_the_drift_of_positions_is_linear_in_the_value_map(d, r, seed, a):
    head, source = random_head(d, r, seed), seeded(seed + 1)
    points, tokens = normal(source, 4, d), normal(source, 3, d)
    scaled = dataclasses.replace(head, w_o=a * head.w_o)
    gap = positional_drift(scaled, points, tokens) - a * positional_drift(head, points, tokens)
    assert gap.abs().max() < 1e-10


# --- errors ----------------------------------------------------------------------------------


def test_points_and_tokens_of_another_width_are_refused():
    points = torch.zeros(3, 4, dtype=torch.float64)
    with pytest.raises(InputError, match="head of width 5"):
        positional_drift(random_head(5, 2, 0), points, points)


@pytest.mark.parametrize(
    "ask",
    [
        lambda head: maps_at_offset(head, 1),
        lambda head: maps_in_context(head, 4),
        lambda head: rotary_effect(head, 4),
        frequency_energy,
    ],
)
def test_a_head_without_rotary_encoding_is_refused(ask):
    with pytest.raises(InputError, match="no rotary encoding"):
        ask(random_head(4, 2, 0))


def test_an_empty_context_is_refused():
    with pytest.raises(InputError, match="at least 1"):
        maps_in_context(rotary_head(4, 2, 0), 0)


def test_rates_at_offset_zero_are_the_plain_rates_of_the_head():
    head = rotary_head(10, 4, 0)
    assert head_rates(maps_at_offset(head, 0)) == head_rates(head)
    assert head_rates(head).largest == pytest.approx(dense_rates([head])[-1].item(), rel=1e-12)
