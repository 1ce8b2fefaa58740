"""Figures: every kind of layer in both kinds of file, and nothing in them that a browser obeys."""

import io

import pytest
from PIL import Image

from orbitlens.draw import figure as figure_module
from orbitlens.draw.figure import (
    Curve,
    Figure,
    Forest,
    Heat,
    Level,
    Panel,
    Points,
    check_packages,
    write_figures,
)
from orbitlens.draw.figure_html import html_of
from orbitlens.draw.figure_png import png_of
from orbitlens.errors import InputError, MissingPackageError


def panels():
    x = [1.0, 2.0, 3.0]
    return [
        Panel(
            layers=[
                Curve(x=x, y=x, low=x, high=[2.0, 3.0, 4.0], label="band", markers=True),
                Level(at=2.0, label="threshold"),
                Level(at=2.0, vertical=True),
            ],
            x_log=True,
            x_range=(0.5, 4.0),
            x_ticks=[(1.0, "one")],
        ),
        Panel(layers=[Points(x=x, y=x, low=[0.5, 1.5, 2.5], high=[1.5, 2.5, 3.5], label="marks")]),
        Panel(layers=[Heat(values=[[0.0, 1.0]], texts=[["a", "b"]], x_names=["l", "r"], bar="b")]),
        Panel(
            layers=[
                Forest(
                    names=["first", "second"],
                    values=[0.0, 1.0],
                    low=[-1.0, 0.5],
                    high=[1.0, 1.5],
                    colours=["#0072B2", "#D55E00"],
                )
            ],
            notes=[(0.0, 0.0, "here")],
        ),
    ]


def made(**changes):
    given = {"name": "all", "title": "All kinds", "caption": "Words.", "panels": panels()}
    return Figure(**(given | changes))


def test_every_layer_is_drawn_as_a_picture():
    image = Image.open(io.BytesIO(png_of(made())))
    assert image.width == 1600
    assert len(image.convert("L").resize((64, 64)).getcolors()) > 20  # not blank


def test_a_page_needs_nothing_from_elsewhere_and_obeys_nobody():
    text = html_of(made(title="<script>alert(1)</script>", caption="a & b"))
    assert "<script>alert(1)" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert "a &amp; b" in text
    assert "default-src 'none'" in text
    assert 'src="http' not in text


def test_files_are_written_whole(tmp_path):
    files = write_figures([made()], tmp_path)
    assert [file.name for file in files] == ["all.html", "all.png"]
    assert sorted(file.name for file in tmp_path.iterdir()) == ["all.html", "all.png"]
    with pytest.raises(InputError, match="cannot be written"):
        write_figures([made()], tmp_path / "missing")


def test_a_figure_without_panels_is_refused():
    with pytest.raises(InputError, match="no panels"):
        made(panels=[])


def test_missing_packages_are_named_before_a_run(monkeypatch):
    monkeypatch.setattr(figure_module.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match="plotly and matplotlib"):
        check_packages()
