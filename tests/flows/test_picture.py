import math
from dataclasses import replace

import pytest
import torch

from flow_runs import cloud, gathering, on_sphere, runaway, trajectory, turning
from orbitlens.errors import InputError
from orbitlens.flows import film as film_module
from orbitlens.flows import picture as numbers
from orbitlens.flows.examples import example_system
from orbitlens.flows.picture import ALONE, flow_picture
from orbitlens.flows.system import Geometry
from orbitlens.theory.clouds import mean_cosine


def test_tokens_of_width_two_are_drawn_where_they_are(generator):
    tokens = turning(generator)
    picture = flow_picture(trajectory(tokens), title="turn")
    assert torch.equal(picture.plane.positions, tokens)
    assert picture.plane.is_map
    assert picture.plane.depth is None
    assert picture.token_index.tolist() == list(range(9))


def test_frames_are_saved_moments_at_an_equal_stride_with_both_ends(generator):
    tokens = turning(generator, n_steps=101)
    run = trajectory(tokens)
    picture = flow_picture(run, title="", n_frames=20)
    assert torch.equal(picture.times, run.times[::5])
    few = flow_picture(run, title="", n_frames=30)  # a stride of 3 does not divide 100
    assert few.times[0] == 0 and few.times[-1] == 3
    assert torch.equal(few.times[1:], run.times[1::3])
    assert len(flow_picture(run, title="", n_frames=1000).times) == 101


def test_clusters_are_labelled_by_size_and_lone_tokens_are_told_apart(generator):
    picture = flow_picture(trajectory(gathering(generator)), title="", system=on_sphere())
    assert picture.labels.tolist() == [0, 0, 0, 0, 1, 1, ALONE]
    assert picture.cluster_sizes == (4, 2)


def test_directions_cluster_where_normalisation_makes_length_irrelevant():
    line = torch.tensor([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    run = trajectory(line.expand(3, 3, 2).clone())
    pre_ln = replace(example_system("aligned", d_model=2), geometry=Geometry.PRE_LN)
    assert flow_picture(run, title="", system=pre_ln).cluster_sizes == (2,)
    assert flow_picture(run, title="").cluster_sizes == ()


def test_series_are_the_metrics_of_every_frame():
    pair = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64)
    run = trajectory(torch.stack([pair, 10 * pair]))
    picture = flow_picture(run, title="")
    torch.testing.assert_close(picture.log_norm, torch.tensor([5.0, 50.0]).double().log10())
    torch.testing.assert_close(picture.log_distance, torch.tensor([25.0, 2500.0]).double().log10())


def test_energy_is_one_when_all_tokens_are_one_and_known_for_two_opposite_groups():
    beta = 1.5
    pole = torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)
    together, apart = pole.expand(4, 3), torch.stack([pole, pole, -pole, -pole])
    picture = flow_picture(
        trajectory(torch.stack([apart, together])), title="", system=on_sphere(beta)
    )
    expected = torch.tensor([(1 + math.exp(-2 * beta)) / 2, 1.0], dtype=torch.float64)
    torch.testing.assert_close(picture.energy, expected)


def test_the_energy_of_identity_scores_is_not_drawn_for_other_heads(generator):
    tokens = trajectory(gathering(generator))
    turned = example_system("random", d_model=3)
    other = replace(turned, geometry=Geometry.SPHERE)
    assert flow_picture(tokens, title="", system=other).energy is None
    assert flow_picture(tokens, title="", system=on_sphere()).energy is not None


def test_directions_are_drawn_with_their_mean_cosine(generator):
    """Behind a norm in front of attention tokens have lengths, and attention does not see them."""
    unit = gathering(generator)
    long = unit * torch.linspace(1, 1e4, 7, dtype=torch.float64)[:, None]
    pre_ln = replace(example_system("aligned", d_model=3), geometry=Geometry.PRE_LN)
    drawn = flow_picture(trajectory(long), title="", system=pre_ln)
    plain = flow_picture(trajectory(unit), title="", system=on_sphere())
    torch.testing.assert_close(drawn.plane.positions, plain.plane.positions)
    assert any("length 1" in note for note in drawn.notes)
    expected = [mean_cosine(x) for x in unit]
    for picture in (drawn, plain):
        assert picture.cosine.tolist() == pytest.approx(expected, abs=1e-12)
    titles = [panel.title for panel in film_module.side_panels(drawn)]
    assert titles[0].startswith("mean cosine of pairs")
    assert flow_picture(trajectory(long), title="").cosine is None


@pytest.mark.parametrize("system", [None, on_sphere(beta=0.0), on_sphere(beta=2000.0)])
def test_an_energy_that_cannot_be_had_is_left_out_and_the_picture_says_so(generator, system):
    picture = flow_picture(trajectory(gathering(generator)), title="", system=system)
    assert picture.energy is None
    assert any("no energy" in note for note in picture.notes)


def test_a_runaway_beyond_float64_stays_finite_and_keeps_directions_and_order(generator):
    run = runaway(generator)
    assert torch.isinf(run.tokens).any()
    picture = flow_picture(run, title="")
    positions = picture.plane.positions
    assert torch.isfinite(positions).all()
    radius = positions.norm(dim=-1)
    assert (radius.diff(dim=0) > 0).all()
    directions = run.unit_tokens / run.unit_tokens.norm(dim=-1, keepdim=True)
    torch.testing.assert_close(positions / radius[..., None], directions)
    assert torch.isfinite(picture.log_norm).all() and torch.isfinite(picture.log_distance).all()
    assert picture.plane.guides and any("logarithmic" in note for note in picture.notes)


def test_rings_are_where_powers_of_ten_are_drawn():
    distances = torch.tensor([1.0, 10.0, 100.0, 1000.0, 10_000.0], dtype=torch.float64)
    tokens = torch.stack([distances, 0 * distances], dim=-1)[:, None]  # one token runs outwards
    plane = flow_picture(trajectory(tokens), title="").plane
    radii = {guide.label: guide.points.norm(dim=-1).mean().item() for guide in plane.guides}
    seen = plane.positions[:, 0, 0].tolist()
    expected = {"1": seen[0], "10²": seen[2], "10⁴": seen[4]}
    assert radii == pytest.approx(expected)


def test_wide_tokens_are_seen_along_the_directions_they_vary_in(generator):
    flat = turning(generator)
    basis, _ = torch.linalg.qr(cloud(generator, 7, 7))
    positions = flow_picture(trajectory(flat @ basis[:2]), title="").plane.positions
    torch.testing.assert_close(positions.norm(dim=-1), flat.norm(dim=-1))


def test_a_globe_keeps_lengths_and_turns_its_largest_cluster_to_the_viewer(generator):
    plane = flow_picture(trajectory(gathering(generator)), title="", system=on_sphere()).plane
    lengths = plane.positions.square().sum(dim=-1) + plane.depth.square()
    torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert plane.depth[-1, 0] > 0


def test_tokens_of_width_one_are_drawn_against_time(generator):
    tokens = cloud(generator, 12, 5, 1)
    run = trajectory(tokens)
    plane = flow_picture(run, title="").plane
    assert torch.equal(plane.positions[..., 1], tokens[..., 0])
    assert torch.equal(plane.positions[:, 0, 0], run.times)
    assert not plane.is_map


def test_many_tokens_are_thinned_out_and_the_picture_says_so(generator):
    picture = flow_picture(trajectory(cloud(generator, 3, 1000, 2)), title="")
    assert picture.plane.positions.shape[1] == len(picture.labels) == numbers.MOST_DRAWN
    assert picture.token_index[0] == 0 and picture.token_index[-1] == 999
    assert f"{numbers.MOST_DRAWN} of 1000 tokens are drawn" in picture.notes


def test_moments_that_overflowed_are_left_out_and_the_picture_says_so(generator):
    tokens = turning(generator)
    tokens[-2:] = math.inf
    picture = flow_picture(trajectory(tokens), title="")
    assert len(picture.times) == 10
    assert "2 moments without finite tokens are left out" in picture.notes


def test_a_picture_of_nothing_is_refused(generator):
    with pytest.raises(InputError, match="nothing to draw"):
        flow_picture(trajectory(torch.full((3, 2, 2), math.nan, dtype=torch.float64)), title="")
    with pytest.raises(InputError, match="at least 2"):
        flow_picture(trajectory(turning(generator)), title="", n_frames=1)


def test_single_precision_and_gradients_are_no_obstacle(generator):
    tokens = turning(generator).float().requires_grad_()
    picture = flow_picture(trajectory(tokens), title="")
    assert picture.plane.positions.dtype == torch.float64
    assert not picture.plane.positions.requires_grad


def test_ticks_of_a_log_chart_are_round_and_inside():
    assert [words for _, words in film_module._log_ticks(0.0, 8.0)] == ["10²", "10⁴", "10⁶"]
    assert [words for _, words in film_module._log_ticks(-0.05, 1.1)] == ["1", "2", "5", "10"]
    assert [words for _, words in film_module._log_ticks(math.log10(4.5), 1.02)] == ["6", "8", "10"]
