"""The pieces of the in-context-autoregression study, on cases whose answer is known."""

import math
from dataclasses import replace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens_papers.autoregression import angles, augmented, heads, plain
from orbitlens_papers.autoregression.attention import (
    Setting,
    Spectrum,
    characters,
    closed_form,
    eigenvalues,
    expected_loss,
    in_order,
    predictions,
    sampled_loss,
    shuffled_orders,
)
from orbitlens_papers.jobs import Job

CIRCLE = Setting(spectrum=Spectrum.CIRCLE, d=3, n_tokens=5)
PAIRS = Setting(spectrum=Spectrum.PAIRS, d=4, n_tokens=5)


def random_model(setting, generator):
    c = torch.randn(setting.d, setting.d, generator=generator, dtype=torch.float64)
    p = torch.randn(setting.n_tokens, generator=generator, dtype=torch.float64)
    return c, p


# --- the expected loss -----------------------------------------------------------------------


@pytest.mark.parametrize("setting", [CIRCLE, PAIRS], ids=["circle", "pairs"])
def test_the_exact_loss_is_that_of_a_full_grid_of_angles(setting):
    """Characters of low degree are integrated exactly by a grid: no sampling, no tolerance."""
    generator = torch.Generator().manual_seed(4)
    small = replace(setting, d=2, n_tokens=4)
    c, p = random_model(small, generator)
    n = 32  # beyond twice the largest power
    angles_ = 2 * torch.pi * torch.arange(n, dtype=torch.float64) / n
    first, second = torch.meshgrid(angles_, angles_, indexing="ij")
    turns = torch.stack([first.flatten(), second.flatten()], dim=1)
    if setting.spectrum is Spectrum.PAIRS:
        turns = torch.stack([angles_, -angles_], dim=1)
    values = torch.polar(torch.ones_like(turns), turns)
    grid = float(sampled_loss(values, c, p, in_order(small)[0]).mean())
    exact = expected_loss(c[None], p[None], characters(small, in_order(small)))
    assert float(exact) == pytest.approx(grid, rel=1e-12)


def test_the_closed_form_is_the_exact_loss_and_the_other_is_not(generator):
    c, p = random_model(CIRCLE, generator)
    exact = float(expected_loss(c[None], p[None], characters(CIRCLE, in_order(CIRCLE))))
    assert closed_form(c, p) == pytest.approx(exact, rel=1e-12)
    assert abs(closed_form(c, p, counted=2) / exact - 1) > 0.01


def test_shuffled_orders_have_the_loss_of_their_samples(generator):
    c, p = random_model(PAIRS, generator)
    orders = shuffled_orders(PAIRS, 3, generator)
    exact = float(expected_loss(c[None], p[None], characters(PAIRS, orders)))
    values = eigenvalues(PAIRS, 40_000, generator)
    sampled = sum(float(sampled_loss(values, c, p, order).mean()) for order in orders) / 3
    assert sampled == pytest.approx(exact, rel=0.03)


def test_the_known_solutions_foretell_exactly(generator):
    """C = I and the last place for unitary W; ones and -1/2 for orthogonal W."""
    last = torch.tensor([0.0, 0, 0, 0, 1], dtype=torch.float64)
    values = eigenvalues(CIRCLE, 50, generator)
    out = predictions(values, torch.eye(3, dtype=torch.float64), last, in_order(CIRCLE)[0])
    assert torch.allclose(out, values**6, atol=1e-12)
    ones = torch.block_diag(*[torch.ones(2, 2, dtype=torch.float64)] * 2)
    rule = torch.tensor([0.0, 0, 0, -0.5, 1], dtype=torch.float64)
    values = eigenvalues(PAIRS, 50, generator)
    assert torch.allclose(
        predictions(values, ones, rule, in_order(PAIRS)[0]), values**6, atol=1e-12
    )
    assert torch.linalg.matrix_rank(ones) == 2


def test_conjugate_pairs_are_conjugate_and_odd_ones_refused(generator):
    values = eigenvalues(PAIRS, 7, generator)
    assert torch.allclose(values[:, ::2].conj(), values[:, 1::2])
    with pytest.raises(InputError, match="even d"):
        Setting(spectrum=Spectrum.PAIRS, d=3, n_tokens=4)
    with pytest.raises(InputError, match="at least 2"):
        Setting(spectrum=Spectrum.CIRCLE, d=3, n_tokens=1)


# --- numbers read off ------------------------------------------------------------------------


def test_a_family_of_solutions_has_the_ratio_of_its_blocks():
    """C00 = 1/p_T and p_T C01 + p_{T-1} (C00 + C01) = 0 leave C01 free."""
    for other in (0.2, 0.5, 1.0):
        block = torch.tensor([[1.0, other], [other, 1.0]], dtype=torch.float64)
        c = torch.block_diag(block, block)
        p = torch.tensor([0.0, 0, 0, -other / (1 + other), 1], dtype=torch.float64)
        loss = expected_loss(c[None], p[None], characters(PAIRS, in_order(PAIRS)))
        assert float(loss) < 1e-24
        solution = {"c": c.tolist(), "p": p.tolist()}
        assert plain.family_gap(solution) < 1e-12
        assert (plain.trigonometric_gap(solution) < 1e-12) == (other == 1.0)


def test_numbers_of_a_perfect_solution_are_zero_and_of_another_are_not():
    eye = torch.eye(3).tolist()
    good = {"a": eye, "b": eye, "c": eye, "p": [0.0, 0.0, 1.0]}
    bad = {"a": eye, "b": torch.ones(3, 3).tolist(), "c": torch.ones(3, 3).tolist(), "p": [1.0] * 3}
    for number in (plain.off_diagonal, plain.other_places, plain.product_gap, plain.head_overlap):
        assert number(good) == 0.0
        if number is not plain.product_gap:
            assert number(bad) == pytest.approx(1.0)


# --- training --------------------------------------------------------------------------------


def solved(setting, n_heads, **more):
    task = heads.Task(setting=setting, n_heads=n_heads, numbers=(5,), n_steps=600, **more)
    return heads.solve(task)[0]


def test_d_heads_learn_a_unitary_map_and_fewer_leave_their_share():
    assert solved(CIRCLE, 3)["sampled"] < 1e-8
    assert solved(CIRCLE, 2)["loss"] == pytest.approx(1 / 3, abs=1e-3)


def test_equal_weights_of_places_leave_what_they_must():
    found = solved(CIRCLE, 3, constant=True)
    least = 1 - (1 - 1 / (CIRCLE.n_tokens - 1 + CIRCLE.d)) / (CIRCLE.n_tokens - 1)
    assert found["loss"] == pytest.approx(least, abs=1e-6)
    assert found["loss"] > 0.5


def test_half_the_heads_learn_an_orthogonal_map_by_trigonometry():
    found = solved(PAIRS, 2, n_starts=16)
    assert found["sampled"] < 1e-6
    assert plain.place_ratio(found) == pytest.approx(-0.5, abs=1e-3)
    assert solved(PAIRS, 1)["loss"] > 0.4


# --- augmented tokens ------------------------------------------------------------------------

SETUP = augmented.StepSetup(setting="commuting", kind="structured", n_steps=60, pool=2**10)


@pytest.mark.parametrize("setting", augmented.SETTINGS)
def test_sequences_obey_one_map_each(setting, generator):
    s = augmented.sequences(replace(SETUP, setting=setting), 6, generator).s
    assert torch.allclose(s.norm(dim=-1), torch.ones(6, 14, dtype=torch.float64))
    inner = torch.einsum("ntd,ntd->nt", s[:, 1:], s[:, :-1])
    assert torch.allclose(inner, inner[:, :1].expand_as(inner))  # W is orthogonal


def test_random_orthogonal_maps_are_orthogonal_of_both_signs(generator):
    q = augmented.haar(200, 4, generator)
    assert torch.allclose(q @ q.mT, torch.eye(4, dtype=torch.float64).expand(200, 4, 4))
    assert 0.35 < (torch.linalg.det(q) > 0).double().mean() < 0.65


def test_a_gradient_step_is_that_of_autograd(generator):
    s = augmented.sequences(SETUP, 3, generator).s
    for row, step in zip(s, augmented.gradient_step(s), strict=True):
        w = torch.zeros(4, 4, dtype=torch.float64, requires_grad=True)
        known = row[:-1]
        loss = (known[1:] - known[:-1] @ w.T).square().sum() / 2
        (gradient,) = torch.autograd.grad(loss, w)
        assert torch.allclose(-gradient @ known[-1], step)


@pytest.mark.parametrize("setting", augmented.SETTINGS)
def test_both_models_hold_the_gradient_step(setting, generator):
    """Identity maps make the structured model the step; the free one holds it in its blocks."""
    setup = replace(SETUP, setting=setting)
    found = augmented.sequences(setup, 5, generator)
    values, keys = found.s[:, 1:-1], found.s[:, :-2]
    one = torch.eye(4, dtype=torch.float64)
    if setting == "commuting":
        structured = {name: torch.tensor([[1.0, 0.0]] * 2).double() for name in ("value", "score")}
    else:
        structured = {"value": one, "score": one}
    zero = torch.zeros(4, 4, dtype=torch.float64)
    score = torch.zeros(12, 12, dtype=torch.float64)
    score[8:, 4:8] = one
    free = {"value": torch.cat([zero, one, zero], dim=1), "score": score}
    wanted = augmented.gradient_step(found.s)
    for kind, weights in (("structured", structured), ("free", free)):
        out = augmented.predict(replace(setup, kind=kind), weights, values, keys, found.basis)
        assert torch.allclose(out, wanted)


def test_what_is_diagonal_in_the_basis_commutes_with_all_systems(generator):
    basis = augmented.haar(1, 4, generator)[0]
    weight = torch.randn(2, 2, generator=generator, dtype=torch.float64)
    matrix = augmented._in_basis(SETUP, weight, basis)
    w = basis @ augmented.rotations(SETUP, 3, generator) @ basis.T
    assert torch.allclose(matrix @ w, w @ matrix)


def test_alignment_moves_turns_from_values_to_scores(generator):
    weights = {
        name: torch.randn(2, 2, generator=generator, dtype=torch.float64)
        for name in ("value", "score")
    }
    turned = augmented.aligned(SETUP, weights)
    assert torch.allclose(turned["value"][:, 1], torch.zeros(2, dtype=torch.float64))
    assert (turned["value"][:, 0] > 0).all()
    before, after = (
        torch.view_as_complex(x["value"]) * torch.view_as_complex(x["score"])
        for x in (weights, turned)
    )
    assert torch.allclose(before, after)
    free = replace(SETUP, kind="free")
    assert augmented.aligned(free, weights) is weights


def test_broken_pairs_do_not_learn_the_step():
    setup = replace(SETUP, n_steps=300)
    whole, broken = (
        augmented.train(Job(setup=replace(setup, broken=b), seed=0)) for b in (False, True)
    )
    assert whole["aligned"] > 0.98
    assert broken["aligned"] < 0.8
    assert broken["mse"] > 1.5 * whole["mse"]


# --- small angles ----------------------------------------------------------------------------


def test_angles_of_the_whole_circle_need_the_last_place_alone():
    p, loss = angles.place_weights(1.0, 200)
    assert loss < 1e-12
    assert angles.spread(p) < 1e-6
    spread, _ = angles.place_weights(100.0, 200)
    assert angles.spread(spread) > 0.5


def test_weights_of_places_lower_the_loss_they_are_trained_on():
    losses = [angles.place_weights(50.0, n)[1] for n in (0, 10, 1000)]
    assert losses[0] == pytest.approx(1.0)
    assert losses[0] > losses[1] > losses[2] >= -1e-12
    assert math.isfinite(losses[2])
