"""N1c, N2 and N4 of heads behind a norm: margins, hypotheses, and the flow they speak of."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from orbitlens.families.architecture import NormKind
from orbitlens.theory.maps import HeadMaps
from orbitlens.theory.normalised import (
    CONTEXT,
    ValueFlow,
    head_spread,
    normalised_head_certificates,
    normalised_layer_certificates,
)
from random_heads import dense_score, dense_value, head_of, normal, random_head, seeded

PAIR = [[0.0, 3.0], [-3.0, 0.0]]  # eigenvalues 3i and -3i


def certificates(head):
    maps = HeadMaps.of(head)
    found = normalised_head_certificates(head, maps, head_spread(head, maps))
    return {certificate.name: certificate for certificate in found}


def value_of(eigenvalues, seed=0):
    """Return a map with these eigenvalues, and its eigenvectors as columns."""
    vectors = normal(seeded(seed), len(eigenvalues), len(eigenvalues))
    diagonal = torch.diag(torch.tensor(eigenvalues, dtype=torch.float64))
    return vectors @ diagonal @ torch.linalg.inv(vectors), vectors


def head_with(value, *, sharpness=0.3, **fields):
    score = sharpness * normal(seeded(9), *value.shape)
    return head_of(score, value, **{"norm": NormKind.RMS, "causal": True, **fields})


def test_margins_are_the_lead_in_size_and_the_gap_in_real_part():
    found = certificates(head_with(value_of([2.0, 0.5, -0.8, 0.1])[0]))
    assert found["N1c"].holds and found["N1c"].margin == pytest.approx(1 - 0.8 / 2)
    assert found["N2"].holds and found["N2"].margin == pytest.approx(2 - 0.5)


def test_the_zeros_of_a_narrow_head_count_among_the_other_eigenvalues():
    narrow = random_head(6, 2, 0, norm=NormKind.RMS, causal=True)
    value = value_of([2.0, -1.9], 3)[0]  # on what the head reads, w_v
    w_o = torch.linalg.solve(narrow.w_v.T @ narrow.w_v, value.T @ narrow.w_v.T)
    found = certificates(dataclasses.replace(narrow, w_o=w_o))
    assert found["N1c"].margin == pytest.approx(1 - 1.9 / 2)
    assert found["N2"].margin == pytest.approx(2.0)  # to 0, not to -1.9


def test_an_eigenvalue_may_lead_in_real_part_and_not_in_size():
    found = certificates(head_with(value_of([1.0, 0.5, -2.0])[0]))
    assert not found["N1c"].holds
    assert found["N2"].holds and found["N2"].margin == pytest.approx(0.5)


LEADING = value_of([2.0, 0.5, -0.8])[0]
TAKEN = {
    "no norm": ({"norm": None}, {"N1c", "N2", "N4"}),
    "a norm behind": ({"post_norm": True}, {"N1c", "N2"}),
    "a bias": ({"b_v": torch.ones(3, dtype=torch.float64)}, {"N1c", "N2"}),
    "full attention": ({"causal": False}, {"N2"}),
    "a norm on the output": (
        {"output_gain": torch.ones(3, dtype=torch.float64)},
        {"N1c", "N2"},
    ),
    "clipped values": ({"clip": 1.0}, {"N1c", "N2"}),
    "sharp scores": ({"scale": 100.0}, {"N4"}),
}


@pytest.mark.parametrize("name", TAKEN)
def test_each_hypothesis_that_is_taken_away_takes_its_certificates(name):
    head = head_with(LEADING)
    assert all(certificate.holds for certificate in certificates(head).values())
    fields, lost = TAKEN[name]
    found = certificates(dataclasses.replace(head, **fields))
    assert {key for key, certificate in found.items() if not certificate.holds} == lost
    assert all(found[key].margin == 0.0 or key == "N4" for key in lost)


TURNING = torch.block_diag(torch.tensor(PAIR), torch.tensor([[-1.0]])).double()
EDGES = {
    "a pair leads": TURNING + torch.eye(3).double(),
    "all decay": -torch.eye(3).double() - torch.diag(torch.tensor([0.1, 0.2, 0.3])).double(),
    "two agree": torch.diag(torch.tensor([2.0, 2.0, 0.5])).double(),
    "a Jordan block": torch.tensor([[2.0, 1.0, 0.0], [0.0, 2.0, 0.0], [0.0, 0.0, 0.5]]).double(),
    "nothing": torch.zeros(3, 3).double(),
}


@pytest.mark.parametrize("name", EDGES)
def test_value_maps_without_one_eigenvalue_ahead_have_no_certificate(name):
    found = certificates(head_with(EDGES[name]))
    assert not found["N1c"].holds and not found["N2"].holds


# --- the flow --------------------------------------------------------------------------------


def run_behind_a_norm(head, x, *, n_steps=6000, step=0.02):
    """Integrate dx_i = V sum_j p_ij u_j, u = sqrt(d) x / |x|, under a causal mask, by midpoints."""
    w, v = dense_score(head).numpy(), dense_value(head).numpy()
    n, d = x.shape
    hidden = np.triu(np.ones((n, n), dtype=bool), 1)

    def velocity(x):
        u = math.sqrt(d) * x / np.linalg.norm(x, axis=1, keepdims=True)
        scores = np.where(hidden, -np.inf, u @ w @ u.T)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        return (p / p.sum(axis=1, keepdims=True)) @ u @ v.T

    for _ in range(n_steps):
        x = x + step * velocity(x + step / 2 * velocity(x))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


def test_tokens_behind_a_norm_go_where_n1c_and_n2_say():
    value, vectors = value_of([2.0, 0.5, -0.8])
    head = head_with(value)
    found = certificates(head)
    assert found["N1c"].holds and found["N2"].holds
    leading = (vectors[:, 0] / vectors[:, 0].norm()).numpy()
    side = torch.linalg.inv(vectors)[0].numpy()  # the left eigenvector
    x = normal(seeded(4), 5, 3).numpy()
    first = run_behind_a_norm(head, x)[0]
    assert abs(first @ leading) == pytest.approx(1.0, abs=1e-3)  # from any start
    x *= np.sign(x @ side)[:, None]
    ends = run_behind_a_norm(head, x)
    assert np.abs(ends - np.sign(leading @ side) * leading).max() < 0.02


def test_control_a_leading_pair_turns_the_first_token_for_ever():
    head = head_with(EDGES["a pair leads"])
    x = normal(seeded(4), 5, 3).numpy()
    early, late = (run_behind_a_norm(head, x, n_steps=n)[0] for n in (4000, 4700))
    assert np.linalg.norm(early - late) > 0.1


# --- N4 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_the_bound_on_scores_is_that_of_singular_values_from_above(seed):
    head = random_head(7, 3, seed, sizes=(0.2, 0.2, 1.0, 1.0), norm=NormKind.RMS)
    sizes = [torch.linalg.matrix_norm(w, 2).item() for w in (head.w_q, head.w_k)]
    product = torch.linalg.matrix_norm(dense_score(head), 2).item()
    exact = 2 * 7 * min(head.scale * sizes[0] * sizes[1], product)
    bound = head_spread(head, HeadMaps.of(head))
    assert exact <= bound <= exact * (1 + 1e-6)


@pytest.mark.parametrize("scale", [1e-300, 1e-5, 0.3, 1e5])
def test_the_bound_on_scores_follows_any_scale(scale):
    head = random_head(7, 3, 0, sizes=(0.2, 0.2, 1.0, 1.0), norm=NormKind.RMS)
    plain, other = (dataclasses.replace(head, scale=size) for size in (1.0, scale))
    bound = head_spread(other, HeadMaps.of(other))
    assert bound == pytest.approx(
        scale * head_spread(plain, HeadMaps.of(plain)), rel=1e-6, abs=1e-200
    )


def entropies(head, u):
    p = torch.softmax(u @ dense_score(head) @ u.T, dim=-1)
    return -(p * p.clamp(min=1e-300).log()).sum(dim=-1)


def test_no_tokens_behind_a_norm_have_less_entropy_than_n4_says_and_longer_ones_do():
    head = random_head(4, 2, 1, sizes=(0.35, 0.35, 1.0, 1.0), norm=NormKind.RMS)
    found = certificates(head)["N4"]
    assert found.holds
    left, _, right = torch.linalg.svd(dense_score(head))
    u = normal(seeded(2), CONTEXT, 4)
    u[0], u[1:3], u[3:] = left[:, 0], right[0], -right[0]  # one query, and keys at both ends
    u = math.sqrt(4) * u / u.norm(dim=-1, keepdim=True)
    floor = found.numbers["entropy"]
    assert found.margin == pytest.approx(floor / math.log(CONTEXT))
    assert entropies(head, u).min() >= floor
    for seed in range(20):
        drawn = normal(seeded(seed), CONTEXT, 4)
        drawn = math.sqrt(4) * drawn / drawn.norm(dim=-1, keepdim=True)
        assert entropies(head, drawn).min() >= floor
    assert entropies(head, 3 * u).min() < floor


# --- layers ----------------------------------------------------------------------------------


def test_a_layer_whose_spectrum_was_not_computed_says_so():
    head = head_with(LEADING)
    flow = ValueFlow.of(head, HeadMaps.of(head))
    assert normalised_layer_certificates(flow, [0.1])[0].holds
    unknown = dataclasses.replace(flow, spectrum=None)
    first = normalised_layer_certificates(unknown, [0.1])[0]
    assert not first.holds
    assert "ask for exact spectra" in first.why


def test_the_sharpest_head_decides_of_a_layer():
    head = head_with(LEADING)
    flow = ValueFlow.of(head, HeadMaps.of(head))
    of_layer = normalised_layer_certificates(flow, [0.1, 2.0])[1]
    assert of_layer == normalised_layer_certificates(flow, [2.0])[1]
    assert not normalised_layer_certificates(flow, [0.1, None])[1].holds
