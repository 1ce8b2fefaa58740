"""HeadMaps: every low-rank quantity equals the one computed from the d x d maps."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from orbitlens.heads.head import make_head
from orbitlens.theory.maps import HeadMaps, matrix_root
from random_heads import (
    PROPERTY,
    SEEDS,
    dense_score,
    dense_value,
    head_of,
    in_basis,
    normal,
    orthogonal,
    random_head,
    regauged,
    seeded,
    symmetric_part,
    zero_head,
)

SIZES = [(1.0, 1.0, 1.0, 1.0), (1e6, 1e-5, 1e-6, 1e4), (1e-7, 1e-7, 1e5, 1e5)]


@st.composite
def heads(draw):
    """Draw heads narrower and wider than the tokens, of full and lower rank, some badly scaled."""
    d = draw(st.integers(1, 10))
    r = draw(st.integers(1, max(1, d // 2)) | st.integers(1, d + 2))  # narrow ones often
    rank = draw(st.none() | st.integers(1, min(d, r)))
    return random_head(d, r, draw(SEEDS), rank=rank, sizes=draw(st.sampled_from(SIZES)))


def dense(head):
    """Return every quantity of the maps from W and V themselves."""
    w, v = dense_score(head), dense_value(head)
    spectrum = torch.linalg.eigvals(v)
    symmetric, rest = symmetric_part(w), w - symmetric_part(w)
    return {
        "score_norm": w.norm().item(),
        "value_norm": v.norm().item(),
        "alignment": ((v * w).sum() / (v.norm() * w.norm())).item(),
        "inner_product": (v * w).sum().item(),
        "score_symmetry": ((symmetric.norm() ** 2 - rest.norm() ** 2) / w.norm() ** 2).item(),
        "speed_limit": torch.linalg.matrix_norm(v, 2).item(),
        "value_abscissa": spectrum.real.max().item(),
        "value_radius": spectrum.abs().max().item(),
        "copying": (spectrum.sum().real / spectrum.abs().sum()).item(),
    }


def scales(head):
    """Return the size that an error in each quantity is measured against."""
    w, v = dense_score(head).norm().item(), dense_value(head).norm().item()
    ones = dict.fromkeys(("alignment", "score_symmetry", "copying"), 1.0)
    of_v = dict.fromkeys(("value_norm", "speed_limit", "value_abscissa", "value_radius"), v)
    return ones | of_v | {"score_norm": w, "inner_product": w * v}


def worst_error(maps, expected, scale):
    return max(abs(getattr(maps, name) - expected[name]) / scale[name] for name in expected)


@PROPERTY
@given(heads())
def test_every_quantity_equals_its_dense_computation(head):
    assert worst_error(HeadMaps.of(head), dense(head), scales(head)) < 1e-9


def test_the_dense_comparison_notices_a_head_with_one_factor_transposed():
    head = random_head(6, 6, 0)
    wrong = make_head(head.w_q, head.w_k, head.w_v, head.w_o.T.contiguous())
    assert worst_error(HeadMaps.of(wrong), dense(head), scales(head)) > 1e-2


@PROPERTY
@given(heads())
def test_gram_blocks_are_products_of_the_factors_they_name(head):
    maps = HeadMaps.of(head)
    factors = {
        "left": head.w_q * head.scale,
        "right": head.w_k,
        "out": head.w_o.T,
        "value": head.w_v,
    }
    blocks = ["left_left", "right_right", "out_out", "value_value"]
    for name in [*blocks, "out_left", "value_right", "value_out", "right_left"]:
        first, second = (factors[part] for part in name.split("_"))
        slack = 1e-14 * first.norm() * second.norm()
        assert (getattr(maps, name) - first.T @ second).abs().max() <= slack


def test_an_output_gain_and_the_scale_are_part_of_the_maps():
    gain = torch.linspace(0.5, 2.0, 5, dtype=torch.float64)
    head = random_head(5, 3, 1, output_gain=gain, scale=0.7)
    v, w = gain[:, None] * dense_value(head), 0.7 * head.w_q @ head.w_k.T
    maps = HeadMaps.of(head)
    assert maps.value_norm == pytest.approx(v.norm().item(), rel=1e-12)
    assert maps.inner_product == pytest.approx((v * w).sum().item(), rel=1e-12)
    assert maps.value_norm != pytest.approx(dense_value(head).norm().item(), rel=1e-3)


# --- spectra ---------------------------------------------------------------------------------


def head_with_value_spectrum(d, core, seed):
    """Return a head whose value map has the spectrum of `core` and zeros besides."""
    source = seeded(seed)
    r = core.shape[0]
    out = normal(source, d, r)
    value = out @ torch.linalg.inv(out.T @ out) @ core.T  # so that U^T O = core
    return make_head(normal(source, d, r), normal(source, d, r), value, out.T.contiguous())


def block(real, imaginary):
    return torch.tensor([[real, -imaginary], [imaginary, real]], dtype=torch.float64)


@PROPERTY
@given(st.floats(-3, 3), st.floats(0.1, 3), st.floats(-3, 3), st.integers(3, 12), SEEDS)
def test_a_value_map_with_a_chosen_spectrum_gives_it_back(real, imaginary, single, d, seed):
    turn = normal(seeded(seed + 1), 3, 3)
    core = torch.block_diag(block(real, imaginary), torch.tensor([[single]], dtype=torch.float64))
    core = turn @ core @ torch.linalg.inv(turn)
    maps = HeadMaps.of(head_with_value_spectrum(d, core, seed))
    chosen = [complex(real, imaginary), complex(real, -imaginary), complex(single, 0.0)]
    found = sorted(maps.value_spectrum.tolist(), key=lambda z: (round(z.imag, 6), z.real))
    for ours, theirs in zip(found, sorted(chosen, key=lambda z: (z.imag, z.real)), strict=True):
        assert abs(ours - theirs) < 1e-7
    forced = [0.0] if d > 3 else []
    assert maps.value_abscissa == pytest.approx(max(real, single, *forced), abs=1e-7)
    assert maps.value_radius == pytest.approx(
        max(math.hypot(real, imaginary), abs(single)), rel=1e-6
    )


def test_the_abscissa_counts_zeros_that_the_rank_forces_and_no_others():
    core = -torch.eye(3, dtype=torch.float64)
    assert HeadMaps.of(head_with_value_spectrum(3, core, 0)).value_abscissa == pytest.approx(-1.0)
    assert HeadMaps.of(head_with_value_spectrum(4, core, 0)).value_abscissa == 0.0


def test_a_head_wider_than_its_tokens_has_no_spectrum_beyond_theirs():
    source = seeded(3)
    value = normal(source, 3, 5)
    out = -torch.linalg.pinv(value).T  # V = O U^T = -I, of full rank 3 though five columns wide
    head = make_head(normal(source, 3, 5), normal(source, 3, 5), value, out.T.contiguous())
    maps = HeadMaps.of(head)
    assert maps.rank == 3
    assert maps.value_abscissa == pytest.approx(-1.0, rel=1e-9)
    assert maps.copying == pytest.approx(-1.0, rel=1e-9)


def test_copying_is_one_for_a_copier_and_minus_one_for_its_opposite():
    eye = torch.eye(4, dtype=torch.float64)
    assert HeadMaps.of(head_of(eye, 2 * eye)).copying == 1.0
    assert HeadMaps.of(head_of(eye, -2 * eye)).copying == -1.0
    quarter_turn = torch.block_diag(block(0.0, 1.0), block(0.0, 1.0))
    assert HeadMaps.of(head_of(eye, quarter_turn)).copying == 0.0


def test_score_symmetry_is_one_if_symmetric_and_minus_one_if_antisymmetric():
    m = normal(seeded(0), 5, 5)
    eye = torch.eye(5, dtype=torch.float64)
    assert HeadMaps.of(head_of(m + m.T, eye)).score_symmetry == pytest.approx(1.0, abs=1e-14)
    assert HeadMaps.of(head_of(m - m.T, eye)).score_symmetry == pytest.approx(-1.0, abs=1e-14)


def test_alignment_is_one_for_equal_maps_and_minus_one_for_opposite_ones():
    m = normal(seeded(1), 5, 5)
    assert HeadMaps.of(head_of(m, 3 * m)).alignment == pytest.approx(1.0, abs=1e-14)
    assert HeadMaps.of(head_of(m, -3 * m)).alignment == pytest.approx(-1.0, abs=1e-14)


# --- signs of the alignment ------------------------------------------------------------------


def dense_signs(head):
    """Return the signs of sym(V^T W) on the row space of V, or None where one is near zero."""
    w, v = dense_score(head), dense_value(head)
    _, sizes, rows = torch.linalg.svd(v)
    basis = rows[sizes > 1e-9 * sizes[0]].T
    eigenvalues = torch.linalg.eigvalsh(basis.T @ symmetric_part(v.T @ w) @ basis)
    if eigenvalues.abs().min() < 1e-5 * eigenvalues.abs().max():
        return None
    return int((eigenvalues > 0).sum()), int((eigenvalues < 0).sum())


@PROPERTY
@given(heads())
def test_alignment_signs_are_those_of_the_dense_form_where_v_acts(head):
    expected = dense_signs(head)
    if expected is not None:
        assert HeadMaps.of(head).alignment_signs == expected


@pytest.mark.parametrize(
    ("d", "r", "rank"), [(5, 5, 5), (8, 3, 3), (8, 4, 2), (4, 6, 4), (6, 6, 3)]
)
def test_alignment_signs_cover_both_signs_and_ignore_forced_zeros(d, r, rank):
    seen = set()
    for seed in range(30):
        head = random_head(d, r, seed, rank=rank)
        expected = dense_signs(head)
        if expected is not None:
            assert HeadMaps.of(head).alignment_signs == expected
            assert sum(expected) == rank
            seen.add(expected)
    assert len(seen) > 1


@PROPERTY
@given(st.lists(st.sampled_from([-2.0, -1.0, 1.0, 3.0]), min_size=1, max_size=5), SEEDS)
def test_a_head_built_on_an_alignment_has_its_signs(signs, seed):
    source = seeded(seed)
    d = len(signs)
    q = orthogonal(source, d)
    a = q @ torch.diag(torch.tensor(signs, dtype=torch.float64)) @ q.T
    v = normal(source, d, d)
    positive = sum(sign > 0 for sign in signs)
    assert HeadMaps.of(head_of(a @ v, v)).alignment_signs == (positive, d - positive)


# --- invariances -----------------------------------------------------------------------------

NAMES = tuple(dense(random_head(2, 2, 0)))


def quantities(head):
    maps = HeadMaps.of(head)
    return {name: getattr(maps, name) for name in NAMES}


@PROPERTY
@given(heads(), SEEDS)
def test_a_rotation_of_the_token_basis_changes_nothing(head, seed):
    turned = in_basis(head, orthogonal(seeded(seed), head.d_model))
    assert worst_error(HeadMaps.of(turned), quantities(head), scales(head)) < 1e-9


@PROPERTY
@given(st.integers(2, 9), st.integers(1, 6), SEEDS)
def test_a_change_of_gauge_changes_nothing(d, r, seed):
    head, source = random_head(d, r, seed), seeded(seed + 1)
    other = regauged(head, normal(source, r, r), normal(source, r, r))
    error = worst_error(HeadMaps.of(other), quantities(head), scales(head))
    condition = max(torch.linalg.cond(other.w_q), torch.linalg.cond(other.w_v)).item()
    assert error < 1e-13 * max(condition, 10.0) ** 2
    assert HeadMaps.of(other).alignment_signs == HeadMaps.of(head).alignment_signs


def test_a_change_that_is_no_gauge_is_noticed():
    head, m = random_head(6, 3, 0), normal(seeded(1), 3, 3)
    wrong = regauged(head, m, torch.eye(3, dtype=torch.float64))
    wrong = make_head(wrong.w_q, head.w_k, head.w_v, head.w_o)
    assert worst_error(HeadMaps.of(wrong), quantities(head), scales(head)) > 1e-2


@PROPERTY
@given(heads(), st.floats(-8, 8).filter(lambda a: abs(a) > 1e-3))
def test_scaling_the_values_scales_what_is_of_v_and_flips_signs(head, a):
    before, maps = quantities(head), HeadMaps.of(head)
    after = HeadMaps.of(make_head(head.w_q, head.w_k, head.w_v, a * head.w_o, scale=head.scale))
    sign = math.copysign(1.0, a)
    expected = {
        "score_norm": before["score_norm"],
        "score_symmetry": before["score_symmetry"],
        "value_norm": abs(a) * before["value_norm"],
        "speed_limit": abs(a) * before["speed_limit"],
        "value_radius": abs(a) * before["value_radius"],
        "inner_product": a * before["inner_product"],
        "alignment": sign * before["alignment"],
        "copying": sign * before["copying"],
    }
    size = {name: abs(a) * s if name in before else s for name, s in scales(head).items()}
    size |= {"score_norm": scales(head)["score_norm"], "score_symmetry": 1.0, "alignment": 1.0}
    size["copying"] = 1.0
    assert worst_error(after, expected, size) < 1e-9
    assert after.alignment_signs == maps.alignment_signs[:: int(sign)]


def test_a_zero_head_gives_zeros_and_never_nan():
    maps = HeadMaps.of(zero_head(5, 2))
    assert quantities(zero_head(5, 2)) == dict.fromkeys(NAMES, 0.0)
    assert maps.alignment_signs == (0, 0)


# --- the root of a Gram matrix ---------------------------------------------------------------


@PROPERTY
@given(st.integers(1, 8), st.integers(1, 8), SEEDS)
def test_a_matrix_root_multiplies_back_to_the_gram_matrix(width, rank, seed):
    factor = normal(seeded(seed), rank, width)  # rank < width: singular
    gram = factor.T @ factor
    root = matrix_root(gram)
    assert (root @ root.T - gram).abs().max() < 1e-12 * gram.abs().max()
