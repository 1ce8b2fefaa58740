"""Films: every kind of file, whole or not at all, and a page that plays offline."""

import importlib.util
import re
from dataclasses import replace

import pytest

from flow_runs import shapes, trajectory, turning
from orbitlens.draw import film_file, film_image
from orbitlens.draw.film_file import film_kind, write_film
from orbitlens.errors import InputError, MissingPackageError
from orbitlens.flows.film import flow_film
from orbitlens.flows.picture import flow_picture

HOSTILE = "</script><b>$x$ & friends"


def made(run, title, system=None):
    return flow_film(flow_picture(run, title=title, system=system))


@pytest.fixture
def film(generator):
    return made(trajectory(turning(generator)), HOSTILE)


def test_a_still_decodes_at_its_size_and_holds_more_than_paper(film, tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    write_film(film, tmp_path / "flow.png")
    with image_module.open(tmp_path / "flow.png") as image:
        assert image.size == (1800, 1000)
        assert (0, 114, 178) in {colour for _, colour in image.getcolors(1 << 20)}


def test_a_gif_moves(film, tmp_path):
    image_module = pytest.importorskip("PIL.Image")
    pytest.importorskip("matplotlib")
    write_film(film, tmp_path / "flow.gif")
    with image_module.open(tmp_path / "flow.gif") as image:
        assert image.size == (900, 500)
        assert image.n_frames == len(film.times) > 10
        colours = {colour for _, colour in image.convert("RGB").getcolors(1 << 20)}
    assert {(255, 255, 255), (0, 114, 178)} <= colours  # our own, not merely near them
    assert (tmp_path / "flow.gif").stat().st_size < 1_000_000


def test_a_film_is_an_mp4(film, tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("imageio_ffmpeg")
    write_film(film, tmp_path / "flow.mp4")
    data = (tmp_path / "flow.mp4").read_bytes()
    assert data[4:8] == b"ftyp"
    assert len(data) > 5000


@pytest.fixture
def page(film, tmp_path):
    write_film(film, tmp_path / "flow.html")
    return (tmp_path / "flow.html").read_text(encoding="utf-8")


def test_a_page_holds_all_it_needs_and_may_not_use_the_network(page):
    assert len(page) < 100_000
    assert not re.search(r'<(script|link|img|iframe)\b[^>]*\b(src|href)\s*=(?!"data:,")', page)
    assert "default-src 'none'" in page


def test_a_hostile_title_stays_words(page):
    assert HOSTILE not in page
    assert page.count("&lt;/script&gt;&lt;b&gt;$x$ &amp; friends") == 2  # the tab and the heading
    assert len(re.findall(r"<script\b", page)) >= page.count("</script>") > 0


def test_every_kind_of_trajectory_can_be_written(generator, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(film_image, "STILL_DPI", 50)
    for name, run, system in shapes(generator):
        drawn = made(run, name, system)
        for suffix in ("png", "html"):
            file = tmp_path / f"{name}.{suffix}"
            write_film(drawn, file)
            assert file.stat().st_size > 5000
        assert "NaN" not in page_data(tmp_path / f"{name}.html")


def page_data(file):
    """Return what our own script plays."""
    text = file.read_text(encoding="utf-8")
    return re.search(r'id="film-data">(\{.*?\})</script>', text)[1]


def test_an_unknown_kind_of_file_is_refused_and_the_known_ones_named(film, tmp_path):
    for name in ("flow.bmp", "flow"):
        with pytest.raises(InputError, match=r"Known: \.html, \.png, \.gif, \.mp4"):
            write_film(film, tmp_path / name)
    assert film_kind(tmp_path / "FLOW.PNG") is film_file.KINDS[".png"]


def test_a_missing_package_is_named_with_what_installs_it(film, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"pip install 'orbitlens\[plot\]'"):
        write_film(film, tmp_path / "flow.png")
    write_film(film, tmp_path / "flow.html")  # needs nothing else


def test_a_missing_ffmpeg_is_named_with_what_installs_it(tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(film_file, "ffmpeg_binary", lambda: "")
    with pytest.raises(MissingPackageError, match=r"pip install 'orbitlens\[video\]'"):
        film_kind(tmp_path / "flow.mp4")


def test_a_file_that_cannot_be_written_is_an_input_error(film, tmp_path):
    (tmp_path / "taken.html").mkdir()
    for file in (tmp_path / "missing" / "flow.html", tmp_path / "taken.html"):
        with pytest.raises(InputError, match="cannot be written"):
            write_film(film, file)
    assert [path.name for path in tmp_path.iterdir()] == ["taken.html"]


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(film, tmp_path, monkeypatch):
    def half(film, file):
        file.write_text("half")
        raise OSError("disk full")

    file = tmp_path / "flow.html"
    file.write_text("old")
    monkeypatch.setitem(
        film_file.KINDS, ".html", replace(film_file.KINDS[".html"], write=half, package="math")
    )
    with pytest.raises(InputError, match="disk full"):
        write_film(film, file)
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]
