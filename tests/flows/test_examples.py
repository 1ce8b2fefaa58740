"""Named systems are what their names say; a setup builds them with every encoding."""

import math
from dataclasses import replace

import pytest
import torch

from orbitlens.errors import InputError
from orbitlens.families.architecture import Position
from orbitlens.flows.examples import (
    EXAMPLES,
    example_system,
    random_antisymmetric,
    random_definite,
)
from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.prediction import heads_of
from orbitlens.flows.setup import POSITIONS, Setup, build
from orbitlens.flows.system import Geometry, Mask
from slow_flow import normal, random_system, seeded

SIGNS = {
    "pd": lambda d: (d, 0),
    "nd": lambda d: (0, d),
    "hd": lambda d: ((d + 1) // 2, d - (d + 1) // 2),
    "symmetric-pd": lambda d: (d, 0),
    "symmetric-nd": lambda d: (0, d),
}


def maps_of(system):
    """Return W and V of a system of one head, acting on columns."""
    return system.w_q[0] @ system.w_k[0].T, (system.w_v[0] @ system.w_o[0]).T


def asymmetry(matrix):
    return ((matrix - matrix.T).norm() / matrix.norm()).item()


def symmetric_eigenvalues(matrix):
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2)


@pytest.mark.parametrize("d", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("name", SIGNS)
def test_scenarios_have_their_signs(name, d):
    for seed in range(5):
        w, v = maps_of(example_system(name, d_model=d, seed=seed))
        alignment = w @ torch.linalg.inv(v)
        assert symmetric_eigenvalues(w).min() > 0
        signs = symmetric_eigenvalues(alignment)
        assert (int((signs > 0).sum()), int((signs < 0).sum())) == SIGNS[name](d)


@pytest.mark.parametrize("name", SIGNS)
def test_antisymmetric_parts_are_there_when_they_are_meant_to_be(name):
    w, v = maps_of(example_system(name, d_model=4))
    alignment = w @ torch.linalg.inv(v)
    if name.startswith("symmetric"):
        assert max(asymmetry(w), asymmetry(alignment)) < 1e-12
    else:
        assert min(asymmetry(w), asymmetry(alignment)) > 0.05


def test_the_plain_examples_are_what_they_say():
    eye = torch.eye(4, dtype=torch.float64)
    for name, expected in (("aligned", eye), ("anti-aligned", -eye)):
        w, v = maps_of(example_system(name, d_model=4))
        assert torch.equal(w, eye)
        assert torch.equal(v, expected)
    w, v = maps_of(example_system("rotation", d_model=4))
    assert torch.equal(v, -v.T)
    assert torch.equal(v @ v, -eye)  # a quarter turn
    spectrum = torch.linalg.eigvals(maps_of(example_system("spiral", d_model=2))[1])
    assert spectrum.real.tolist() == pytest.approx([-0.05, -0.05])
    assert sorted(spectrum.imag.tolist()) == pytest.approx([-0.5, 0.5])


def test_random_entries_have_unit_variance_over_the_width():
    entries = torch.cat(
        [maps_of(example_system("random", d_model=16, seed=s))[1] for s in range(9)]
    )
    assert entries.var().item() == pytest.approx(1 / 16, rel=0.1)


def test_random_definite_matrices_have_the_asked_signs_and_sizes():
    signs = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(random_definite(4, signs, seeded(0)))
    assert (eigenvalues > 0).sum() == 2
    assert ((eigenvalues.abs() > 0.5) & (eigenvalues.abs() < 1.5)).all()
    skew = random_antisymmetric(5, seeded(0))
    assert torch.equal(skew, -skew.T)


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_example_is_seeded_and_runs(name):
    for d in (1, 2, 3):
        system = example_system(name, d_model=d, seed=4)
        again = example_system(name, d_model=d, seed=4)
        assert torch.equal(system.w_q, again.w_q)
        assert torch.equal(system.w_o, again.w_o)
        found = integrate_flow(system, normal(seeded(1), 6, d), until=1.0)
        assert torch.isfinite(found.unit_tokens).all()
    assert EXAMPLES[name].what


def test_unknown_names_and_widths_are_refused():
    with pytest.raises(InputError, match=r"no system is called 'algined'\. Known: aligned, anti-"):
        example_system("algined")
    with pytest.raises(InputError, match="width 0"):
        example_system("aligned", d_model=0)


# --- setups ----------------------------------------------------------------------------------


@pytest.mark.parametrize("position", POSITIONS)
def test_a_setup_builds_every_encoding(position):
    system, tokens = build(Setup(system="random", n_tokens=7, d_model=4, position=position))
    assert tuple(tokens.shape) == (7, 4)
    assert (system.positions is not None) == (position in {"absolute", "reinjected"})
    assert system.reinjected == (position == "reinjected")
    assert (system.rotary is not None) == (position == "rotary")
    assert (system.alibi_slopes is not None) == (position == "alibi")
    integrate_flow(system, tokens, until=0.5)


@pytest.mark.parametrize("d", [4, 8])
@pytest.mark.parametrize("name", ["random", "mixed"])
def test_start_tokens_and_weights_are_drawn_independently(name, d):
    """Drawn from one seed, the first tokens were the rows of W, times the root of the width."""
    system, tokens = build(Setup(system=name, n_tokens=d, d_model=d))
    w, v = maps_of(system)
    for weight in (w, v - torch.eye(d)):
        stacked = torch.stack([weight.flatten(), tokens.flatten()])
        assert stacked.corrcoef()[0, 1].abs() < 0.6


def test_a_setup_is_a_function_of_its_numbers():
    setup = Setup(system="mixed", alignment=0.3, n_tokens=5, position="absolute", seed=3)
    (one, tokens), (two, same) = build(setup), build(setup)
    assert torch.equal(tokens, same)
    assert torch.equal(one.w_o, two.w_o)
    other, others = build(replace(setup, seed=4))
    assert not torch.equal(tokens, others)
    assert not torch.equal(one.w_o, other.w_o)


def test_an_encoding_does_not_change_the_tokens_or_the_weights():
    plain, tokens = build(Setup(system="random", seed=5))
    for position in POSITIONS:
        system, same = build(Setup(system="random", seed=5, position=position))
        assert torch.equal(tokens, same)
        assert torch.equal(plain.w_q, system.w_q)


def test_the_settings_of_a_setup_reach_the_system():
    setup = Setup(beta=2.5, mask=Mask.CAUSAL, window=3, geometry=Geometry.NGPT)
    system, _ = build(setup)
    assert (system.beta, system.mask, system.window) == (2.5, Mask.CAUSAL, 3)
    assert system.geometry is Geometry.NGPT
    assert build(Setup())[0].window is None


@pytest.mark.parametrize("alignment", [-1.0, -0.4, 0.0, 0.7, 1.0])
def test_the_mixed_family_goes_from_anti_aligned_to_aligned(alignment):
    system, _ = build(Setup(system="mixed", alignment=alignment, d_model=6))
    w, v = maps_of(system)
    eye = torch.eye(6, dtype=torch.float64)
    assert torch.equal(w, eye)
    rest = v - alignment * eye
    assert (rest.norm() == 0) == (abs(alignment) == 1)


def test_positions_have_the_asked_size():
    setup = Setup(n_tokens=500, d_model=8, position="absolute", position_size=3.0)
    lengths = build(setup)[0].positions.norm(dim=-1)
    assert lengths.square().mean().sqrt().item() == pytest.approx(3.0, rel=0.05)


def test_a_given_system_keeps_its_own_mask_and_scale():
    given, _ = random_system(0, mask="causal", beta=2.0)
    system, tokens = build(Setup(n_tokens=5, beta=3.0), given)
    assert system.mask is Mask.CAUSAL
    assert system.beta == 6.0
    assert tokens.shape[1] == given.d_model


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"system": "unheard-of"}, "Known: aligned, .*mixed"),
        ({"position": "left"}, "unknown. Known: none, absolute"),
        ({"n_tokens": 0}, "expected at least 1"),
        ({"d_model": 0}, "width 0"),
        ({"system": "mixed", "d_model": 0}, "expected -1 to 1, and 1 or more"),
        ({"system": "mixed", "alignment": 1.5}, "expected -1 to 1"),
        ({"position": "rotary", "d_model": 1}, "at least 2 wide"),
        ({"position": "rotary", "rotary_base": -3.0}, "the base is -3"),
        ({"beta": -1.0}, "beta is -1"),
        ({"window": -2}, "window is -2"),
    ],
)
def test_setups_that_make_no_sense_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        build(Setup(**changes))


def test_an_odd_width_leaves_one_coordinate_unturned():
    system, _ = build(Setup(position="rotary", d_model=5))
    assert (system.rotary.d_rotary, system.rotary.d_head) == (4, 5)


def test_the_theory_is_told_of_the_encoding():
    kinds = {
        "none": Position.NONE,
        "absolute": Position.LEARNED,
        "rotary": Position.ROTARY,
        "alibi": Position.ALIBI,
    }
    for position, expected in kinds.items():
        system, _ = build(Setup(position=position, d_model=2, mask=Mask.CAUSAL, beta=2.0))
        (head,) = heads_of(system)
        assert head.position is expected
        assert head.causal
        assert math.isclose((head.w_q @ head.w_k.T * head.scale)[0, 0].item(), 2.0)
