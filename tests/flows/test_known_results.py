"""Results of the literature, reproduced at smoke scale.

One cluster, and metastable clusters, on the sphere: arXiv 2312.10794 and 2410.06833. Leaders,
polytopes and hyperplanes of tokens that run away: arXiv 2305.05465.
"""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.spatial import ConvexHull

from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import count_clusters
from orbitlens.flows.system import Geometry, Mask, system_of_maps
from orbitlens.theory.clouds import interaction_energy, mean_cosine
from orbitlens.trajectory import Status
from slow_flow import normal, seeded


def identity(d, **settings):
    eye = torch.eye(d, dtype=torch.float64)
    return replace(system_of_maps(eye, eye), **settings)


def sphere(d, beta):
    return identity(d, geometry=Geometry.SPHERE, beta=beta)


def run(system, tokens, until, **options):
    return integrate_flow(system, tokens, until=until, options=IntegrateOptions(**options))


def pattern(trajectory):
    """Return the attention weights at the end, for W = I."""
    u, s = trajectory.unit_tokens[-1], trajectory.log_scale[-1].item()
    return torch.softmax(math.exp(2 * s) * u @ u.T, dim=-1)


# --- on the sphere ---------------------------------------------------------------------------


@pytest.mark.parametrize("geometry", [Geometry.SPHERE, Geometry.NGPT])
@pytest.mark.parametrize(("d", "beta"), [(3, 0.1), (3, 1.0), (8, 1.0), (16, 4.0)])
def test_tokens_on_the_sphere_gather_in_one_cluster(d, beta, geometry):
    found = run(replace(sphere(d, beta), geometry=geometry), normal(seeded(1), 32, d), 60.0)
    assert (found.status, found.n_clusters) == (Status.CONVERGED, 1)
    assert mean_cosine(found.final) > 1 - 1e-6


def test_a_causal_mask_gathers_them_around_the_first():
    """With V = I the first token never moves, and the others come to it (arXiv 2411.04990)."""
    tokens = normal(seeded(2), 16, 4)
    found = run(replace(sphere(4, 1.0), mask=Mask.CAUSAL), tokens, 60.0)
    first = tokens[0] / tokens[0].norm()
    assert (found.status, found.n_clusters) == (Status.CONVERGED, 1)
    assert (found.final @ first).min() > 1 - 1e-6


def test_minus_the_identity_pushes_them_apart():
    """V = -I: the same energy falls, and no cluster forms."""
    eye = torch.eye(3, dtype=torch.float64)
    system = replace(system_of_maps(eye, -eye), geometry=Geometry.SPHERE)
    found = run(system, normal(seeded(3), 16, 3), 20.0)
    energies = [interaction_energy(x, 1.0) for x in found.tokens]
    assert energies[-1] < energies[0]
    assert all(b <= a + 1e-12 for a, b in itertools.pairwise(energies))
    assert found.n_clusters == 16


def plateaus(energy, *, flat=2e-4, shortest=20):
    """Return (first, last) of every stretch in which the energy hardly rises."""
    found, begin = [], None
    for k, rise in enumerate([*np.diff(energy), math.inf]):
        if rise < flat and begin is None:
            begin = k
        if rise >= flat and begin is not None:
            if k - begin >= shortest:
                found.append((begin, k))
            begin = None
    return found


def test_large_beta_has_metastable_clusters_and_an_energy_in_steps():
    found = run(sphere(3, 12.0), normal(seeded(2), 32, 3), 1000.0, n_saved=1001, rtol=1e-8)
    energy = np.array([interaction_energy(x, 12.0) for x in found.tokens])
    assert np.diff(energy).min() >= -1e-12 * energy[-1]  # it never falls
    steps = plateaus(energy / energy[-1])
    assert len(steps) >= 3
    counts = [count_clusters(found.tokens[(a + b) // 2], 0.1) for a, b in steps]
    assert counts == sorted(set(counts), reverse=True)  # clusters merge, one plateau to the next
    assert counts[0] >= 5
    heights = [energy[a] / energy[-1] for a, _ in steps]
    assert all(b - a > 0.1 for a, b in itertools.pairwise(heights))
    for a, b in steps:  # and little happens in between
        assert (found.tokens[a] * found.tokens[b]).sum(dim=-1).min() > 0.95


def test_a_hot_cloud_has_no_steps():
    found = run(sphere(3, 1.0), normal(seeded(2), 32, 3), 20.0, n_saved=401, rtol=1e-8)
    energy = np.array([interaction_energy(x, 1.0) for x in found.tokens])
    assert len(plateaus(energy / energy[-1])) == 1  # the last


@pytest.mark.parametrize("seed", range(4))
def test_the_energy_rises_for_any_temperature_and_start(seed):
    for beta in (0.5, 3.0, 20.0):
        found = run(sphere(4, beta), normal(seeded(seed), 12, 4), 10.0, rtol=1e-9)
        energy = np.array([interaction_energy(x, beta) for x in found.tokens])
        assert np.diff(energy).min() >= -1e-9 * energy[-1]


def test_time_to_leave_a_metastable_state_grows_exponentially_with_beta():
    """Two clusters at a right angle wait about exp(beta) / (2 beta), as the reduced flow does."""
    waits = []
    for beta in (4.0, 6.0, 8.0):

        def slowness(rho, beta=beta):
            return (math.exp(beta * (1 - rho)) + 1) / (2 * (1 - rho**2))

        angles = torch.tensor([0.0, 0.0, math.pi / 2, math.pi / 2], dtype=torch.float64)
        tokens = torch.stack([angles.cos(), angles.sin()], dim=-1)
        found = run(sphere(2, beta), tokens, 400.0, n_saved=4001, rtol=1e-9)
        cosines = (found.tokens[:, 0] * found.tokens[:, 2]).sum(dim=-1)
        waits.append(found.times[int((cosines > 0.9).nonzero()[0])].item())
        assert waits[-1] == pytest.approx(quad(slowness, 0, 0.9)[0], abs=0.11)
    for early, late in itertools.pairwise(waits):
        assert late > 4 * early


# --- running away ----------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(4))
def test_in_one_dimension_tokens_follow_the_two_extremes(seed):
    tokens = normal(seeded(seed), 40, 1)
    found = run(identity(1), tokens, 15.0)
    leaders = {int(tokens.argmin()), int(tokens.argmax())}
    weights = pattern(found)
    assert weights.max(dim=-1).values.min() > 1 - 1e-9
    assert set(weights.argmax(dim=-1).tolist()) == leaders
    rescaled = found.final * math.exp(-15.0)
    assert count_clusters(rescaled, 1e-3) == 2
    # The order of tokens on the line never changes.
    order = tokens.ravel().argsort()
    assert (found.final.ravel()[order].diff() >= -1e-9 * found.final.abs().max()).all()


@pytest.mark.parametrize("seed", range(4))
def test_rescaled_tokens_gather_at_the_vertices_of_a_polytope(seed):
    """V = I: exp(-t) x converges to few points, the corners of their convex hull."""
    tokens = normal(seeded(seed), 40, 2)
    rescaled = run(identity(2), tokens, 15.0).final * math.exp(-15.0)
    corners = rescaled[ConvexHull(rescaled.numpy()).vertices]
    assert count_clusters(rescaled, 1e-3) <= 6 < count_clusters(tokens, 1e-3)
    assert torch.cdist(rescaled, corners).min(dim=1).values.max() < 1e-3


@pytest.mark.parametrize("seed", range(4))
def test_a_simple_leading_eigenvalue_gathers_them_on_parallel_hyperplanes(seed):
    """Along the leading eigenvector exp(-t) x takes at most three values, one of them 0."""
    q, _ = torch.linalg.qr(normal(seeded(9), 3, 3))
    v = q @ torch.diag(torch.tensor([1.0, 0.3, -0.2], dtype=torch.float64)) @ q.T
    tokens = normal(seeded(seed), 40, 3)
    found = run(system_of_maps(torch.eye(3, dtype=torch.float64), v), tokens, 20.0)
    heights = (found.final @ q[:, :1]) * math.exp(-20.0)
    assert count_clusters(tokens @ q[:, :1], 0.01) > 10
    assert count_clusters(heights, 0.01) <= 3
    others = found.final @ q[:, 1:] * math.exp(-20.0)
    assert others.abs().max() < 1e-3  # the other directions grow more slowly


def test_a_repelling_value_map_shrinks_the_cloud_to_the_origin():
    """V = -I, W = I: T2's slow convergence, like t^(-1/2)."""
    eye = torch.eye(2, dtype=torch.float64)
    tokens = normal(seeded(5), 16, 2)
    found = run(system_of_maps(eye, -eye), tokens, 1600.0, n_saved=5)
    size = found.tokens.norm(dim=-1).amax(dim=-1)
    assert (size[1] / size[4]).item() == pytest.approx(2.0, rel=0.05)  # t = 400 and 1600
