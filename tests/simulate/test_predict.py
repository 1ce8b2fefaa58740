"""Certificates never disagree with what is simulated; weaker predictions are told apart."""

from dataclasses import replace

import pytest
import torch

from orbitlens.simulate.examples import EXAMPLES, example_system
from orbitlens.simulate.integrate import simulate
from orbitlens.simulate.outcome import Fate, fate
from orbitlens.simulate.predict import Source, half_space_rate, heads_of, predict
from orbitlens.simulate.system import Geometry, Mask, system_of_maps
from orbitlens.theory.maps import HeadMaps


def tokens(seed, n=12, d=3):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("name", ["symmetric-pd", "symmetric-nd"])
@pytest.mark.parametrize("seed", range(12))
def test_a_certificate_of_the_whole_cloud_comes_true(name, seed):
    system, x = example_system(name, seed=seed), tokens(seed)
    prediction = predict(system, x)
    assert prediction.source is Source.CERTIFICATE
    assert prediction.why.startswith("T2")
    until = 30.0 if prediction.fate is Fate.DIVERGING else 400.0  # convergence is like t^(-1/2)
    assert fate(simulate(system, x, until=until)) is prediction.fate


@pytest.mark.parametrize("seed", range(12))
def test_a_certificate_of_the_leader_comes_true(seed):
    system = replace(example_system("random", seed=seed), mask=Mask.CAUSAL)
    prediction = predict(system, tokens(seed))
    if prediction.source is Source.CERTIFICATE:
        spectrum = torch.linalg.eigvals((system.w_v @ system.w_o).sum(dim=0))
        until = 12.0 / spectrum.real.max().item()
        assert fate(simulate(system, tokens(seed), until=until)) is Fate.DIVERGING


def test_half_spaces_certify_only_tokens_on_one_side():
    system = system_of_maps(-torch.eye(2).double(), torch.diag(torch.tensor([0.5, -1.0])).double())
    maps = HeadMaps.of(heads_of(system)[0])
    right = torch.tensor([[1.0, 0.3], [0.2, -2.0]], dtype=torch.float64)
    assert half_space_rate(maps, right) == pytest.approx(0.5)
    assert half_space_rate(maps, -right) == pytest.approx(0.5)
    assert half_space_rate(maps, torch.cat([right, -right])) is None
    assert half_space_rate(maps, right, torch.tensor([-1.0, 0.0]).double()) is None
    assert predict(system, right).fate is Fate.DIVERGING


def test_signs_alone_are_an_indication_that_can_fail():
    sources = {predict(example_system(name), tokens(0)).source for name in ("pd", "hd", "nd")}
    assert sources == {Source.INDICATION}
    wrong = 0
    for seed in range(40):  # antisymmetric parts in W and A break T2
        system = example_system("nd", seed=seed)
        wrong += fate(simulate(system, tokens(seed), until=200.0)) is not Fate.CONVERGING
    assert wrong > 0


def test_nothing_is_predicted_where_no_theorem_speaks():
    system = replace(example_system("aligned"), geometry=Geometry.SPHERE)
    prediction = predict(system, tokens(0))
    assert prediction.source is Source.NONE
    assert prediction.certificates == ()  # they speak of the free flow, not of this one


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_runs_in_two_and_three_dimensions(name):
    for d in (2, 3):
        found = simulate(example_system(name, d_model=d), tokens(1, d=d), until=2.0)
        assert torch.isfinite(found.unit_tokens).all()
