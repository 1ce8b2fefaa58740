"""Marks of a rotation in weights: planted ones are found, random weights have none."""

import math

import pytest
import torch

from orbitlens.families.architecture import Pairing
from orbitlens.heads.rotary import plane_members
from orbitlens.theory.plane_evidence import beyond, likeness, marks, plane_nats
from orbitlens.theory.planes import energies, leading, profile, widths

N_HEADS, D_MODEL, D_HEAD = 4, 64, 16


def drawn(generator, scale_q=None, scale_k=None):
    shape = (N_HEADS, D_MODEL, D_HEAD)
    q, k = (torch.randn(shape, generator=generator) for _ in range(2))
    return (q if scale_q is None else q * scale_q), (k if scale_k is None else k * scale_k)


def on_planes(pairing, of_first, of_second):
    """Return one factor a head and coordinate, from those of the two members of each plane."""
    first, second = plane_members(pairing, D_HEAD)
    factors = torch.ones(N_HEADS, 1, D_HEAD)
    factors[:, 0, first], factors[:, 0, second] = of_first, of_second
    return factors


@pytest.mark.parametrize("pairing", Pairing)
def test_opposite_imbalances_of_members_are_found_under_their_pairing(pairing, generator):
    free = torch.exp(0.5 * torch.randn(N_HEADS, D_HEAD // 2, generator=generator))
    q, k = drawn(generator, on_planes(pairing, free, 1 / free), on_planes(pairing, 1 / free, free))
    seen = energies(q, k)
    other = next(p for p in Pairing if p is not pairing)
    assert marks(seen, pairing, D_HEAD).opposite > 15
    assert marks(seen, other, D_HEAD).opposite < 5


@pytest.mark.parametrize("pairing", Pairing)
def test_energies_that_follow_the_plane_are_a_trend_under_its_pairing(pairing, generator):
    slope = torch.linspace(-0.7, 0.7, D_HEAD // 2).exp().expand(N_HEADS, -1)
    q, k = drawn(generator, on_planes(pairing, slope, slope), on_planes(pairing, slope, slope))
    seen = energies(q, k)
    other = next(p for p in Pairing if p is not pairing)
    assert marks(seen, pairing, D_HEAD).energy > 30
    assert marks(seen, pairing, D_HEAD).energy > marks(seen, other, D_HEAD).energy + 10


@pytest.mark.parametrize("pairing", Pairing)
def test_products_within_planes_are_found(pairing, generator):
    q, k = drawn(generator)
    first, second = plane_members(pairing, D_HEAD)
    k = k.clone()
    k[:, :, second] += 0.7 * q[:, :, first]
    seen = energies(q, k)
    other = next(p for p in Pairing if p is not pairing)
    assert marks(seen, pairing, D_HEAD).crossed > 15 > 3 * marks(seen, other, D_HEAD).crossed


@pytest.mark.parametrize("pairing", Pairing)
def test_a_profile_of_other_layers_is_found_under_its_pairing_and_not_in_random_weights(
    pairing, generator
):
    fall = torch.linspace(0.3, -0.3, D_HEAD // 2).exp().expand(N_HEADS, -1)
    q, k = drawn(generator, on_planes(pairing, fall, fall), on_planes(pairing, fall, fall))
    total = energies(q, k).total
    first, second = plane_members(pairing, D_HEAD)
    other = profile(total, pairing, D_HEAD)
    mean = total.mean(dim=0) - total.mean()
    assert torch.allclose(other, (mean[first] + mean[second]) / 2)
    weak = torch.linspace(0.1, -0.1, D_HEAD // 2).exp().expand(N_HEADS, -1)
    q, k = drawn(generator, on_planes(pairing, weak, weak), on_planes(pairing, weak, weak))
    found = energies(q, k).total
    assert likeness(found, pairing, D_HEAD, other) > 3
    assert likeness(found, pairing, D_HEAD, other) > likeness(found, pairing.other, D_HEAD, other)
    assert likeness(-found, pairing, D_HEAD, other) < 0
    by_chance = [
        likeness(
            energies(*drawn(torch.Generator().manual_seed(seed))).total, pairing, D_HEAD, other
        )
        for seed in range(40)
    ]
    assert sorted(by_chance)[37] < 3  # what a layer needs to be like the others
    assert sorted(by_chance)[20] < -5  # that they are not is said too, and not by ln 2 alone


def test_what_energies_say_already_is_not_counted_twice(generator):
    total = torch.randn(N_HEADS, D_HEAD, generator=generator, dtype=torch.float64)
    first, second = plane_members(Pairing.HALVES, D_HEAD)
    total[:, second] = total[:, first]  # as by chance, or in planes
    noise = 0.3 * torch.randn(N_HEADS, D_HEAD, generator=generator, dtype=torch.float64)
    assert plane_nats(0.5 * total + noise, Pairing.HALVES, D_HEAD) > 5
    assert plane_nats(beyond(0.5 * total + noise, total), Pairing.HALVES, D_HEAD) < 1


def test_what_queries_and_keys_share_is_measured_against_what_they_began_with(generator):
    q, k = drawn(generator)
    assert energies(q, k).common < 0.05
    turned = torch.linalg.qr(torch.randn(D_MODEL, D_MODEL, generator=generator)).Q
    both = q + torch.randn(N_HEADS, D_MODEL, 1, generator=generator)  # one direction of heads
    seen, rescaled = energies(both, turned @ both), energies(3 * both, turned @ both / 5)
    assert seen.common == pytest.approx(0.5, abs=0.1)  # half of the energy
    assert rescaled.common == pytest.approx(seen.common)


def test_coordinates_that_are_not_turned_have_a_level_in_the_profile(generator):
    q, k = drawn(generator)
    q[..., 8:] *= 3
    found = profile(energies(q, k).total, Pairing.HALVES, 8)
    assert len(found) == 5
    assert found[-1] > found[:4].max() + 1
    assert likeness(energies(q, k).total, Pairing.HALVES, 8, found) > 30


def test_leading_directions_show_what_few_directions_of_tokens_carry(generator):
    fall = torch.linspace(1.0, -1.0, D_HEAD // 2).exp().repeat(2)
    q, k = drawn(generator)
    for w in (q, k):  # one strong direction of tokens, its energies by plane
        w[:, 0] += 4 * fall * torch.randn(N_HEADS, D_HEAD, generator=generator).sign()
    whole, lead = energies(q, k), energies(*leading(q, k))
    assert leading(q, k)[0].shape == (N_HEADS, 4, D_HEAD)
    assert marks(lead, Pairing.HALVES, D_HEAD).energy > marks(whole, Pairing.HALVES, D_HEAD).energy
    assert marks(lead, Pairing.HALVES, D_HEAD).energy > 8


def test_random_weights_have_no_marks_in_leading_directions_either():
    best = []
    for seed in range(60):
        seen = energies(*leading(*drawn(torch.Generator().manual_seed(seed))))
        best.append(max(marks(seen, p, w).nats for p in Pairing for w in widths(D_HEAD)))
    assert max(best) < 4


def test_random_weights_have_no_marks():
    best = []
    for seed in range(60):
        seen = energies(*drawn(torch.Generator().manual_seed(seed)))
        best.append(max(marks(seen, p, w).nats for p in Pairing for w in widths(D_HEAD)))
        assert abs(seen.balance) < 0.2
        assert 0.5 < seen.spread < 2
    assert max(best) < 4  # what a layer needs to be called rotary
    assert sorted(best)[54] < 2


@pytest.mark.parametrize("kind", ["energy", "opposite", "product", "balance", "crossed"])
def test_evidence_is_worth_its_name_on_exchangeable_weights(kind):
    """The mean Bayes factor is 1 where there are no planes: e^4 comes up in fewer than 1 of 55."""
    found = []
    for seed in range(150):
        seen = energies(*drawn(torch.Generator().manual_seed(seed)))
        found += [getattr(marks(seen, pairing, D_HEAD), kind) for pairing in Pairing]
    assert torch.tensor(found).exp().mean() < 1.3
    assert min(found) >= -math.log(2) - 1e-9  # a kind that is silent costs no more


def test_a_smooth_profile_is_no_part_of_a_head_under_the_other_pairing(generator):
    """Energies that step from fast planes to slow ones look like a level of some coordinates."""
    step = torch.tensor([0.5, 0.5] + [-0.3] * 6).exp().expand(N_HEADS, -1)
    factors = on_planes(Pairing.NEIGHBOURS, step, step)
    seen = energies(*drawn(generator, factors, factors))
    whole = marks(seen, Pairing.NEIGHBOURS, D_HEAD).energy
    assert whole > marks(seen, Pairing.HALVES, D_HEAD).energy + 5


def test_weights_that_balance_whole_have_a_balance_of_one_and_no_partners(generator):
    q, _ = drawn(generator)
    turned = torch.linalg.qr(torch.randn(D_MODEL, D_MODEL, generator=generator)).Q
    seen = energies(q, turned @ q)  # k^T k = q^T q
    assert seen.balance == pytest.approx(1, abs=1e-4)
    assert marks(seen, Pairing.HALVES, D_HEAD).opposite < 4


def test_zero_weights_are_no_error():
    zero = torch.zeros(N_HEADS, D_MODEL, D_HEAD)
    seen = energies(zero, zero)
    assert math.isfinite(marks(seen, Pairing.HALVES, D_HEAD).nats)


# --- what gradient descent keeps -------------------------------------------------------------


def descended(rotated, steps=1600, rate=5e-5):
    """Return q and k of one head before and after plain descent on a loss of its scores."""
    generator = torch.Generator().manual_seed(3)
    tokens = torch.randn(12, 6, generator=generator, dtype=torch.float64)
    wanted = torch.randn(12, 12, generator=generator, dtype=torch.float64)
    q, k = (
        torch.randn(6, 4, generator=generator, dtype=torch.float64).requires_grad_()
        for _ in range(2)
    )
    before = [w.detach().clone() for w in (q, k)]
    places = torch.arange(12, dtype=torch.float64)
    turns = torch.polar(torch.ones(12, 2).double(), places[:, None] * torch.tensor([1.0, 0.3]))

    def turned(x):
        halves = torch.complex(*x.chunk(2, dim=1))
        return halves * turns if rotated else halves

    for _ in range(steps):
        scores = (turned(tokens @ q) @ turned(tokens @ k).mH).real
        (scores - wanted).square().mean().backward()
        with torch.no_grad():
            for w in (q, k):
                w -= rate * 12 * w.grad
                w.grad = None
    return before, [w.detach() for w in (q, k)]


def gram_difference(pair):
    q, k = pair
    return q.T @ q - k.T @ k


def test_with_a_rotation_descent_keeps_the_balance_of_planes_and_not_of_members():
    before, after = (gram_difference(pair).diagonal() for pair in descended(rotated=True))
    moved = (after - before).abs()
    of_planes = (after - before).unflatten(0, (2, 2)).sum(dim=0).abs()
    assert moved.max() > 0.1
    assert of_planes.max() < 0.02 * moved.max()


def test_without_one_it_keeps_the_whole_of_it():
    before, after = (gram_difference(pair) for pair in descended(rotated=False))
    rotated = gram_difference(descended(rotated=True)[1]) - before
    assert (after - before).abs().max() < 0.02 * rotated.abs().max()
