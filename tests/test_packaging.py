"""What is built from the repository holds what users need, and the library leaves papers out."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("hatchling")
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist", "-d"]
    subprocess.run([*command, str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


def test_the_wheel_holds_models_texts_and_assets_and_no_papers(built):
    names = zipfile.ZipFile(next(built.glob("*.whl"))).namelist()
    for part in ("orbit-nano-rotary/model.safetensors", "running/passage.txt", "py.typed"):
        assert any(name.endswith(part) for name in names), part
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert any("/assets/" in name for name in names)
    assert {name.partition("/")[0] for name in names} == {"orbitlens", "orbitlens-0.1.0.dist-info"}


def test_the_sdist_holds_papers_tests_and_all_that_make_needs(built):
    names = tarfile.open(next(built.glob("*.tar.gz"))).getnames()
    inside = {name.partition("/")[2] for name in names}
    for part in ("LICENSE", "Makefile", "constraints.txt", ".ci/run", "papers/pyproject.toml"):
        assert part in inside, part
    folders = {name.partition("/")[0] for name in inside}
    assert {"src", "papers", "tests", "docs", "examples", "experiments", "benchmarks"} <= folders
