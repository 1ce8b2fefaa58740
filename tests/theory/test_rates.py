"""Rates: low-rank spectra equal dense ones, their signs follow theorems, and tokens obey them."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitlens.errors import InputError
from orbitlens.heads.head import make_head
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.rates import (
    LayerDrift,
    Regime,
    core,
    head_rates,
    layer_rates,
    predicted_log_change,
    rate_spectrum,
)
from orbitlens.theory.spectrum import summarise_symmetric
from random_heads import (
    PROPERTY,
    SEEDS,
    dense_rates,
    dense_score,
    dense_value,
    head_of,
    in_basis,
    normal,
    orthogonal,
    random_covariance,
    random_head,
    regauged,
    seeded,
    zero_head,
)

FIELDS = ("smallest", "mean", "largest", "size", "expansion_index")


def summary(eigenvalues):
    """Return what `Rates` holds, from all d_model eigenvalues."""
    size = eigenvalues.abs().sum().item()
    return {
        "smallest": eigenvalues.min().item(),
        "mean": eigenvalues.mean().item(),
        "largest": eigenvalues.max().item(),
        "size": size,
        "expansion_index": eigenvalues.sum().item() / size if size else 0.0,
    }


def worst_error(rates, eigenvalues):
    """Return the largest deviation, each against the size of what it is a part of."""
    expected = summary(eigenvalues)
    extreme = max(abs(expected["smallest"]), abs(expected["largest"]))
    scale = dict.fromkeys(("smallest", "mean", "largest"), extreme)
    scale |= {"size": expected["size"], "expansion_index": 1.0}
    return max(abs(getattr(rates, name) - expected[name]) / scale[name] for name in FIELDS)


@st.composite
def heads(draw):
    """Draw heads of every width, from one column to more than the tokens have."""
    d = draw(st.integers(1, 14))
    r = draw(st.integers(1, max(1, (d - 1) // 2)) | st.integers(1, d + 2))  # narrow ones often
    rank = draw(st.none() | st.integers(1, min(d, r)))
    sizes = draw(st.sampled_from([(1.0, 1.0, 1.0, 1.0), (1e6, 1e-5, 1e-6, 1e4)]))
    return random_head(d, r, draw(SEEDS), rank=rank, sizes=sizes)


# --- against dense eigenvalues ---------------------------------------------------------------


@PROPERTY
@given(heads())
def test_rates_equal_dense_eigenvalues(head):
    assert worst_error(head_rates(head), dense_rates([head])) < 1e-9


@PROPERTY
@given(heads(), SEEDS)
def test_data_aware_rates_equal_dense_eigenvalues(head, seed):
    covariance = random_covariance(seeded(seed), head.d_model)
    rates = head_rates(head, covariance)
    assert worst_error(rates, dense_rates([head], covariance)) < 1e-9


@pytest.mark.parametrize("r", [1, 3, 5, 6, 7, 12, 15])
def test_both_code_paths_give_the_dense_rates(r):
    head = random_head(12, r, r)  # the narrow path ends where 2 r reaches 12
    assert rate_spectrum(HeadMaps.of(head)).numel() == (2 * r if 2 * r < 12 else 12)
    assert worst_error(head_rates(head), dense_rates([head])) < 1e-12


def test_the_dense_comparison_notices_swapped_queries_and_keys():
    head = random_head(9, 3, 0)
    wrong = make_head(head.w_k, head.w_q, head.w_v, head.w_o)
    assert worst_error(head_rates(wrong), dense_rates([head])) > 1e-2


def test_the_dense_comparison_notices_a_missing_covariance():
    head, covariance = random_head(9, 3, 0), random_covariance(seeded(1), 9)
    assert worst_error(head_rates(head), dense_rates([head], covariance)) > 1e-2


def test_rates_of_columns_scaled_apart_by_six_orders_are_still_exact():
    head, source = random_head(16, 5, 4), seeded(5)
    stretch = torch.diag(torch.logspace(-1.5, 1.5, 5, dtype=torch.float64))
    other = regauged(head, stretch, orthogonal(source, 5) @ stretch)
    assert worst_error(head_rates(other), dense_rates([head])) < 1e-9


@PROPERTY
@given(st.integers(1, 4), st.integers(1, 5), st.integers(2, 24), SEEDS, st.booleans())
def test_layer_rates_equal_dense_eigenvalues_of_the_sum(n_heads, r, d, seed, with_covariance):
    layer = [random_head(d, r, seed + h) for h in range(n_heads)]
    covariance = random_covariance(seeded(seed), d) if with_covariance else None
    assert worst_error(layer_rates(layer, covariance), dense_rates(layer, covariance)) < 1e-9


@pytest.mark.parametrize("size", [1.0, 1e-25, 1e25])
def test_a_map_that_is_only_estimated_is_summed_in_float32_and_says_the_same(monkeypatch, size):
    # Factors of any size, whose product is of size 1: float32 would lose some of them.
    heads = [random_head(96, 16, h) for h in range(6)]
    maps = [HeadMaps.of(head) for head in heads]
    maps = [dataclasses.replace(m, left=m.left * size, out=m.out / size) for m in maps]
    monkeypatch.setattr("orbitlens.theory.rates.DENSE_LIMIT", 32)
    drift = LayerDrift(96, 96)
    for one in maps:
        drift.add(one)
    whole = sum(m.out @ core(m) @ m.left.T for m in maps)
    known = summarise_symmetric(whole, dense_limit=32)
    assert drift._dense.dtype == torch.float32
    found = drift.rates()
    assert found.mean == pytest.approx(whole.trace().item() / 96, rel=1e-12)
    assert found.size == pytest.approx(known.nuclear_norm, rel=1e-6)
    assert found.largest == pytest.approx(known.largest, rel=1e-6)
    asked = LayerDrift(96, 96, exact=True)
    asked.add(maps[0])
    assert asked._dense.dtype == torch.float64


@pytest.mark.parametrize(("n_heads", "is_dense"), [(2, False), (3, True), (6, True)])
def test_narrow_layers_stay_in_factors_and_wide_ones_become_dense(n_heads, is_dense):
    layer = [random_head(24, 4, h) for h in range(n_heads)]
    drift = LayerDrift(24, 4 * n_heads, exact=True)
    for head in layer:
        drift.add(HeadMaps.of(head))
    assert (drift._dense is not None) is is_dense
    assert worst_error(drift.rates(), dense_rates(layer)) < 1e-11


@pytest.mark.parametrize("n_heads", [2, 6])
def test_a_layer_may_be_asked_twice_and_added_to(n_heads):
    layer = [random_head(24, 4, h) for h in range(n_heads)]
    drift = LayerDrift(24, 4 * n_heads)
    for head in layer[:-1]:
        drift.add(HeadMaps.of(head))
    first, again = drift.rates(), drift.rates()
    assert worst_error(first, dense_rates(layer[:-1])) < 1e-11
    assert worst_error(again, dense_rates(layer[:-1])) < 1e-11
    drift.add(HeadMaps.of(layer[-1]))
    assert worst_error(drift.rates(), dense_rates(layer)) < 1e-11


def test_the_rates_of_a_layer_are_not_the_sum_of_its_heads_rates():
    layer = [random_head(10, 2, h) for h in range(2)]
    apart = sum(head_rates(head).largest for head in layer)
    assert layer_rates(layer).largest < 0.99 * apart


# --- exact answers ---------------------------------------------------------------------------


@PROPERTY
@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.integers(0, 8), SEEDS)
def test_a_head_with_chosen_rates_gives_them_back(chosen, extra, seed):
    source, r = seeded(seed), len(chosen)
    d = r + extra
    columns = orthogonal(source, d)[:, :r]
    keys = orthogonal(source, d)[:, :r]
    values = keys * torch.tensor(
        chosen, dtype=torch.float64
    )  # U^T R = diag(chosen), so B = Q D Q^T
    rates = head_rates(make_head(columns, keys, values, columns.T.contiguous(), scale=1.0))
    everything = [*chosen, *([0.0] * extra)]
    assert rates.smallest == pytest.approx(min(everything), abs=1e-12)
    assert rates.largest == pytest.approx(max(everything), abs=1e-12)
    assert rates.mean == pytest.approx(sum(chosen) / d, abs=1e-12)
    assert rates.size == pytest.approx(sum(map(abs, chosen)), abs=1e-12)


@PROPERTY
@given(st.integers(1, 6), SEEDS)
def test_an_aligned_head_diverges_and_its_opposite_converges(d, seed):
    v = normal(seeded(seed), d, d)
    if torch.linalg.cond(v) > 1e4:
        return  # then the smallest rate is a rounding error beside the largest
    spreads, gathers = head_rates(head_of(v, v)), head_rates(head_of(v, -v))  # B = V V^T > 0
    assert (spreads.regime, spreads.expansion_index) == (Regime.DIVERGING, pytest.approx(1.0))
    assert (gathers.regime, gathers.expansion_index) == (Regime.CONVERGING, pytest.approx(-1.0))
    assert spreads.smallest > 0
    assert gathers.largest < 0


@PROPERTY
@given(st.integers(1, 6), st.integers(0, 8), SEEDS)
def test_a_generic_narrow_head_has_as_many_rates_of_each_sign_as_it_is_wide(r, extra, seed):
    """Sylvester: sym(B) = G K G^T with G of full rank, and K has r eigenvalues of each sign."""
    head = random_head(2 * r + extra, r, seed)
    eigenvalues = dense_rates([head])
    floor = 1e-12 * eigenvalues.abs().max()
    assert int((eigenvalues > floor).sum()) == r
    assert int((eigenvalues < -floor).sum()) == r
    ours = rate_spectrum(HeadMaps.of(head))
    assert (int((ours > 0).sum()), int((ours < 0).sum())) == (r, r)
    assert head_rates(head).regime is Regime.MIXED


def test_a_head_wider_than_half_its_tokens_may_have_rates_of_one_sign():
    regimes = set()
    for seed in range(40):
        rates = head_rates(random_head(2, 4, seed))
        regimes.add(rates.regime)
    assert regimes == set(Regime)  # no law of inertia binds here, unlike for narrow heads


@pytest.mark.parametrize("r", [3, 6])
def test_a_head_that_writes_where_it_reads_diverges_whatever_rounding_says(r):
    """With O = L the law of inertia does not apply; the rates are r positive ones and zeros."""
    smallest = []
    for seed in range(8):
        columns = orthogonal(seeded(seed), 8)[:, :r]
        rates = head_rates(make_head(columns, columns, columns, columns.T.contiguous()))
        assert rates.regime is Regime.DIVERGING
        assert rates.smallest == pytest.approx(0.0, abs=1e-12)
        smallest.append(rates.smallest)
    assert min(smallest) < 0  # rounding made some zero negative, and it was not believed


# --- invariances -----------------------------------------------------------------------------


def values_of(rates):
    return {name: getattr(rates, name) for name in FIELDS}


def differ_by(first, second):
    """Return the largest difference of two rates, against the largest rate and the size."""
    extreme = max(abs(first.smallest), abs(first.largest)) or 1.0
    scale = dict.fromkeys(("smallest", "mean", "largest"), extreme)
    scale |= {"size": first.size or 1.0, "expansion_index": 1.0}
    return max(abs(getattr(first, name) - getattr(second, name)) / scale[name] for name in FIELDS)


@PROPERTY
@given(heads(), SEEDS, st.booleans())
def test_a_rotation_of_the_token_basis_changes_no_rate(head, seed, with_covariance):
    source = seeded(seed)
    q = orthogonal(source, head.d_model)
    covariance = random_covariance(source, head.d_model) if with_covariance else None
    turned = q.T @ covariance @ q if covariance is not None else None
    before, after = head_rates(head, covariance), head_rates(in_basis(head, q), turned)
    assert differ_by(before, after) < 1e-9
    assert before.regime is after.regime


def test_the_covariance_has_to_turn_with_the_basis():
    head, source = random_head(7, 3, 0), seeded(1)
    q, covariance = orthogonal(source, 7), random_covariance(source, 7)
    unturned = head_rates(in_basis(head, q), covariance)
    assert differ_by(head_rates(head, covariance), unturned) > 1e-2


@PROPERTY
@given(st.integers(1, 10), st.integers(1, 6), SEEDS)
def test_a_change_of_gauge_changes_no_rate(d, r, seed):
    head, source = random_head(d, r, seed), seeded(seed + 1)
    other = regauged(head, normal(source, r, r), normal(source, r, r))
    condition = max(torch.linalg.cond(other.w_q), torch.linalg.cond(other.w_v), 10.0)
    assert differ_by(head_rates(head), head_rates(other)) < 1e-13 * float(condition) ** 2


@PROPERTY
@given(heads(), st.floats(-50, 50).filter(lambda a: abs(a) > 1e-3), st.floats(0.01, 100), SEEDS)
def test_values_and_covariances_scale_the_rates(head, a, s, seed):
    covariance = random_covariance(seeded(seed), head.d_model)
    before = head_rates(head, covariance)
    scaled = dataclasses.replace(head, w_o=a * head.w_o)
    after = head_rates(scaled, s * covariance)
    edges = sorted([a * s * before.smallest, a * s * before.largest])
    expected = dataclasses.replace(
        before,
        smallest=edges[0],
        largest=edges[1],
        mean=a * s * before.mean,
        size=abs(a) * s * before.size,
        expansion_index=math.copysign(1.0, a) * before.expansion_index,
    )
    assert differ_by(expected, after) < 1e-9


@PROPERTY
@given(st.integers(1, 3), st.integers(1, 5), st.integers(2, 24), SEEDS)
def test_a_zero_head_changes_no_rate_of_its_layer(n_heads, r, d, seed):
    layer = [random_head(d, r, seed + h) for h in range(n_heads)]
    before, after = layer_rates(layer), layer_rates([*layer, zero_head(d, r)])
    assert differ_by(before, after) < 1e-10
    assert before.regime is after.regime
    covariance = random_covariance(seeded(seed), d)
    change = predicted_log_change(layer, covariance)
    assert predicted_log_change([*layer, zero_head(d, r)], covariance) == pytest.approx(
        change, rel=1e-12
    )


def test_a_head_that_is_not_zero_changes_the_rates_of_its_layer():
    layer = [random_head(8, 2, h) for h in range(3)]
    assert differ_by(layer_rates(layer[:2]), layer_rates(layer)) > 1e-2


@pytest.mark.parametrize("covariance", [None, torch.eye(6, dtype=torch.float64)])
def test_a_zero_head_has_index_zero_and_no_nan(covariance):
    for rates in (head_rates(zero_head(6, 2), covariance), layer_rates([zero_head(6, 4)])):
        assert values_of(rates) == dict.fromkeys(FIELDS, 0.0)
        assert rates.regime is Regime.MIXED


# --- what attention does to a cloud ----------------------------------------------------------


def drift_of_cloud(heads, tokens, n_queries):
    """Return what softmax attention, in full and over all tokens, adds to the first tokens."""
    queries = tokens[:n_queries]
    update = torch.zeros_like(queries)
    for head in heads:
        w, v = dense_score(head), dense_value(head)
        for rows in range(0, n_queries, 250):
            some = queries[rows : rows + 250]
            update[rows : rows + 250] += (some @ w @ tokens.T).softmax(dim=-1) @ tokens @ v.T
    return update


def gaussian_cloud(covariance, n, seed):
    return normal(seeded(seed), n, covariance.shape[0]) @ torch.linalg.cholesky(covariance).T


@PROPERTY
@given(st.integers(1, 3), st.integers(1, 7), st.integers(1, 7), SEEDS, st.booleans())
def test_predicted_log_change_equals_its_dense_formula(n_heads, r, d, seed, residual):
    layer = [random_head(d, r, seed + h) for h in range(n_heads)]
    s = random_covariance(seeded(seed), d)
    eye = torch.eye(d, dtype=torch.float64) if residual else torch.zeros(d, d, dtype=torch.float64)
    step = eye + sum(dense_value(head) @ s @ dense_score(head).T for head in layer)
    expected = torch.log((step @ s @ step.T).trace() / s.trace()).item()
    ours = predicted_log_change(layer, s, residual=residual)
    assert ours == pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_predicted_log_change_is_what_attention_does_to_a_gaussian_cloud(sign):
    source = seeded(2)
    w, q = 0.25 * normal(source, 4, 4), orthogonal(source, 4)
    layer = [
        head_of(w, sign * (0.5 * w + 0.1 * q)),
        random_head(4, 2, 3, sizes=(0.3, 0.3, 0.4, 0.4 * sign)),
    ]
    covariance = random_covariance(source, 4)
    tokens = gaussian_cloud(covariance, 20_000, 4)
    before = tokens[:2000]
    after = before + drift_of_cloud(layer, tokens, 2000)
    spread = [(x - x.mean(dim=0)).square().sum() for x in (before, after)]
    measured = torch.log(spread[1] / spread[0]).item()
    predicted = predicted_log_change(layer, covariance)
    assert abs(predicted) > 0.05
    assert measured == pytest.approx(predicted, rel=0.02, abs=0.002)
    assert measured != pytest.approx(
        predicted_log_change(layer[:1], covariance), rel=0.02, abs=0.002
    )


def test_the_measured_drift_of_a_gaussian_cloud_is_the_closure():
    head = random_head(3, 2, 11, sizes=(0.5, 0.5, 0.7, 0.7))
    covariance = random_covariance(seeded(12), 3)
    tokens = gaussian_cloud(covariance, 20_000, 13)
    queries, update = tokens[:2000], drift_of_cloud([head], tokens, 2000)
    measured = torch.linalg.lstsq(queries, update - update.mean(dim=0)).solution.T
    closure = dense_value(head) @ covariance @ dense_score(head).T
    assert (measured - closure).norm() < 0.03 * closure.norm()
    # Negative controls: the weights-only map, and the map with its covariance on the wrong side.
    for wrong in (dense_value(head) @ dense_score(head).T, dense_value(head) @ dense_score(head)):
        assert (measured - wrong).norm() > 0.1 * closure.norm()


# --- errors ----------------------------------------------------------------------------------


def test_a_covariance_of_the_wrong_width_is_refused():
    with pytest.raises(InputError, match="4 x 4 was expected"):
        head_rates(random_head(4, 2, 0), torch.eye(5, dtype=torch.float64))


def test_a_layer_without_heads_is_refused():
    with pytest.raises(InputError, match="at least one head"):
        layer_rates([])
