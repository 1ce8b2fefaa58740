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
from orbitlens.draw.script import bundle
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
    with pytest.raises(MissingPackageError, match="need matplotlib"):
        check_packages()


# --- scripts of pages ---


def test_a_bundle_runs_each_module_once_and_keeps_their_names_apart():
    texts = {
        "a/main.js": "import { two } from './b.js';\nimport { one } from '../c/d.js';\nf(two);",
        "a/b.js": "import { one } from '../c/d.js';\nconst own = 1;\nexport const two = own + one;",
        "c/d.js": "const own = 2;\nexport function one() { return own; }",
    }
    made = bundle("a/main.js", texts.__getitem__)
    assert made.count("const own = 2;") == 1
    assert made.index("const own = 2;") < made.index("const own = 1;") < made.index("f(two)")
    assert "import" not in made and "export" not in made


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import { none } from './b.js';", "does not export none"),
        ("import * as b from './b.js';", "expected"),
        ("export default 1;", "expected"),
        ("const a = '</script>';", "expected"),
    ],
)
def test_a_module_that_cannot_be_bundled_is_refused(text, words):
    with pytest.raises(ValueError, match=words):
        bundle("a.js", {"a.js": text, "b.js": "export const b = 1;"}.__getitem__)
