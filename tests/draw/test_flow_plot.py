import importlib.util
import math
import re
from dataclasses import replace

import pytest
import torch

from orbitlens.draw import flow_image, flow_plot, flow_style
from orbitlens.draw import flow_picture as numbers
from orbitlens.draw.flow_picture import ALONE, flow_picture
from orbitlens.draw.flow_plot import plot_kind, write_flow_plot
from orbitlens.errors import InputError, MissingPackageError
from orbitlens.flows.examples import example_system
from orbitlens.flows.system import Geometry
from orbitlens.trajectory import Status, Trajectory

HOSTILE = "</script><b>$x$ & friends"


def trajectory(tokens, *, log_scale=None, status=Status.FINISHED):
    n_steps = len(tokens)
    return Trajectory(
        times=torch.linspace(0, 3, n_steps, dtype=torch.float64),
        unit_tokens=tokens,
        log_scale=torch.zeros(n_steps, dtype=torch.float64) if log_scale is None else log_scale,
        status=status,
        status_time=1.0,
        n_clusters=1,
        n_evaluations=1,
        n_steps=n_steps,
        error_estimate=0.0,
        events=(),
    )


def cloud(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def turning(generator, n_steps=12, n_tokens=9):
    """Return tokens in the plane that turn by a right angle and keep apart."""
    angle = torch.linspace(0, math.pi / 2, n_steps, dtype=torch.float64)
    turn = torch.stack(
        [torch.stack([angle.cos(), angle.sin()], -1), torch.stack([-angle.sin(), angle.cos()], -1)],
        dim=1,
    )
    return cloud(generator, n_tokens, 2) @ turn


def gathering(generator):
    """Return tokens on the sphere that gather in clusters of 4 and 2, and one alone."""
    ends = torch.eye(3, dtype=torch.float64)[[0, 0, 0, 0, 1, 1, 2]]
    start = cloud(generator, 7, 3)
    shares = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None, None]
    mixed = (1 - shares) * start + shares * ends
    return mixed / mixed.norm(dim=-1, keepdim=True)


def on_sphere(beta=2.0):
    return replace(example_system("aligned", d_model=3), geometry=Geometry.SPHERE, beta=beta)


def runaway(generator, d=2, rate=400.0):
    """Return tokens of fixed direction whose size is beyond every float64 at the end."""
    start = cloud(generator, 6, d)
    unit = (start / start.norm()).expand(12, 6, d).clone()
    return trajectory(
        unit, log_scale=torch.linspace(0, 3, 12).double() * rate, status=Status.DIVERGED
    )


# --- the picture as numbers ---


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
    assert [words for _, words in flow_style._log_ticks(0.0, 8.0)] == ["10²", "10⁴", "10⁶"]
    assert [words for _, words in flow_style._log_ticks(-0.05, 1.1)] == ["1", "2", "5", "10"]
    assert [words for _, words in flow_style._log_ticks(math.log10(4.5), 1.02)] == ["6", "8", "10"]


# --- files ---


@pytest.fixture
def picture(generator):
    return flow_picture(trajectory(turning(generator)), title=HOSTILE)


def shapes(generator):
    """Return one trajectory of every kind that is drawn in its own way."""
    yield "globe", trajectory(gathering(generator)), on_sphere()
    yield "runaway", runaway(generator, d=5), None
    yield "runaway on a line", runaway(generator, d=1), None
    yield "one token", trajectory(cloud(generator, 12, 1, 3)), None
    yield "one moment", trajectory(cloud(generator, 1, 4, 3)), None
    yield "one point", trajectory(torch.ones(12, 3, 2, dtype=torch.float64)), None


def test_a_still_decodes_at_its_size_and_holds_more_than_paper(picture, tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    write_flow_plot(picture, tmp_path / "flow.png")
    with image_module.open(tmp_path / "flow.png") as image:
        assert image.size == (1800, 1000)
        assert (0, 114, 178) in {colour for _, colour in image.getcolors(1 << 20)}


def test_a_gif_moves(picture, tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    write_flow_plot(picture, tmp_path / "flow.gif")
    with image_module.open(tmp_path / "flow.gif") as image:
        assert image.size == (900, 500)
        assert image.n_frames == len(picture.times) > 10
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), (0, 114, 178)} <= colours  # our own, not merely near them
    assert (tmp_path / "flow.gif").stat().st_size < 1_000_000


def test_a_film_is_an_mp4(picture, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("imageio_ffmpeg")
    write_flow_plot(picture, tmp_path / "flow.mp4")
    data = (tmp_path / "flow.mp4").read_bytes()
    assert data[4:8] == b"ftyp"
    assert len(data) > 5000


@pytest.fixture
def page(picture, tmp_path):
    pytest.importorskip("plotly")
    write_flow_plot(picture, tmp_path / "flow.html")
    return (tmp_path / "flow.html").read_text(encoding="utf-8")


def test_a_page_holds_plotly_and_may_not_use_the_network(page):
    assert len(page) > 3_000_000 and "Plotly.newPlot" in page
    assert not re.search(r"<(script|link|img|iframe)\b[^>]*\b(src|href)\s*=", page)
    assert "default-src 'none'" in page


def test_a_hostile_title_stays_words(page):
    assert HOSTILE not in page
    assert page.count("&lt;/script&gt;&lt;b&gt;$x$ &amp; friends") == 2  # the tab and the heading
    assert len(re.findall(r"<script\b", page)) >= page.count("</script>") > 0


def test_every_kind_of_trajectory_can_be_written(generator, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    pytest.importorskip("plotly")
    monkeypatch.setattr(flow_image, "STILL_DPI", 50)
    for name, run, system in shapes(generator):
        drawn = flow_picture(run, title=name, system=system)
        for suffix in ("png", "html"):
            file = tmp_path / f"{name}.{suffix}"
            write_flow_plot(drawn, file)
            assert file.stat().st_size > 5000
        assert "NaN" not in page_data(tmp_path / f"{name}.html")


def page_data(file):
    """Return what our own script plays."""
    return re.search(r"const flow = (\{.*\}), last", file.read_text(encoding="utf-8"))[1]


def test_an_unknown_kind_of_file_is_refused_and_the_known_ones_named(picture, tmp_path):
    for name in ("flow.bmp", "flow"):
        with pytest.raises(InputError, match=r"Known: \.html, \.png, \.gif, \.mp4"):
            write_flow_plot(picture, tmp_path / name)
    assert plot_kind(tmp_path / "FLOW.PNG") is flow_plot.KINDS[".png"]


@pytest.mark.parametrize("suffix", [".html", ".png"])
def test_a_missing_package_is_named_with_what_installs_it(picture, tmp_path, monkeypatch, suffix):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'orbitlens\[plot\]'"):
        write_flow_plot(picture, tmp_path / f"flow{suffix}")


def test_a_missing_ffmpeg_is_named_with_what_installs_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(flow_plot, "ffmpeg_binary", lambda: "")
    with pytest.raises(MissingPackageError, match=r"pip install 'orbitlens\[video\]'"):
        plot_kind(tmp_path / "flow.mp4")


def test_a_file_that_cannot_be_written_is_an_input_error(picture, tmp_path):
    pytest.importorskip("plotly")
    (tmp_path / "taken.html").mkdir()
    for file in (tmp_path / "missing" / "flow.html", tmp_path / "taken.html"):
        with pytest.raises(InputError, match="cannot be written"):
            write_flow_plot(picture, file)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(picture, tmp_path, monkeypatch):
    def half(picture, file):
        file.write_text("half")
        raise OSError("disk full")

    file = tmp_path / "flow.html"
    file.write_text("old")
    monkeypatch.setitem(
        flow_plot.KINDS, ".html", replace(flow_plot.KINDS[".html"], write=half, package="math")
    )
    with pytest.raises(InputError, match="disk full"):
        write_flow_plot(picture, file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
