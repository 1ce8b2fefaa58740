"""The examples run, and the notebook is the tutorial without its results."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("transformers")
ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "gathering_heads.ipynb"


def test_the_script_answers_for_a_model_of_the_zoo(monkeypatch, capsys):
    script = ROOT / "examples" / "gathering_heads.py"
    names = runpy.run_path(str(script))
    monkeypatch.setitem(names["main"].__globals__, "DRAWS", 2)
    monkeypatch.setitem(names["main"].__globals__, "MOST_TOKENS", 512)
    names["main"]("orbit-nano-rotary")
    shown = capsys.readouterr().out
    assert re.search(r"without its \d+ heads that gather directions: [+-]", shown)
    assert re.search(r"without \d+ others, 2 draws: [+-]", shown)


def test_the_other_script_ranks_heads(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["scan_model.py", "orbit-nano-rotary", "2"])
    runpy.run_path(str(ROOT / "examples" / "scan_model.py"), run_name="__main__")
    assert "heads with the most opposed maps" in capsys.readouterr().out


def test_the_notebook_runs_and_holds_no_output(capsys):
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    names = {}
    for cell in code:
        source = "".join(cell["source"]).replace("range(20)", "range(2)")
        exec(compile(source, cell["id"], "exec"), names)
    assert names["loss"](names["gatherers"]) > names["whole"]


def test_the_notebook_is_the_tutorial():
    made = runpy.run_path(str(ROOT / "docs" / "make_notebook.py"))
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    assert made["notebook"](page) == NOTEBOOK.read_text(encoding="utf-8"), "make generated"
