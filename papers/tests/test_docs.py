"""Pages and tables are what the stored results say, and the example of the docs runs."""

import json
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from orbitlens_papers.bench import SEEDS, Scale
from orbitlens_papers.registry import STUDIES

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_lists_every_paper_with_its_folder():
    text = (ROOT / "papers" / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| (arXiv [\d.]+) \|", text, re.MULTILINE)
    listed = {
        (import_module(f"orbitlens_papers.{folder}").STUDY.name, paper) for folder, paper in rows
    }
    assert listed == {(study.name, study.paper) for study in STUDIES.values()}


def example():
    page = (ROOT / "docs" / "studies-add.md").read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]


def test_the_example_is_short_runs_and_reaches_a_verdict(tmp_path, monkeypatch, capsys):
    code = example()
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 45
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(compile(code, "docs/studies-add.md", "exec"), names)
    assert capsys.readouterr().out.startswith("reproduced")
    assert [figure.name for figure in names["figures"](names["result"])] == ["far"]


def test_pages_and_readme_are_up_to_date():
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "make_studies.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", list(STUDIES))
def test_a_study_that_takes_more_than_ten_minutes_says_so(name):
    """Seconds were measured with as many seeds as a claim was run with; a fold is a seed."""
    study = STUDIES[name]
    data = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    seeds = study.folds or SEEDS[Scale.DEFAULT]
    seconds = sum(
        finding["seconds"] * min(1.0, seeds / (finding.get("origin") or data)["seeds"])
        for finding in data["findings"]
    )
    assert seconds <= 60 * study.minutes
    assert study.is_long == (seconds > 600)


@pytest.mark.parametrize("name", list(STUDIES))
def test_stored_results_are_of_the_default_scale_and_of_today_s_claims(name):
    data = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    assert data["scale"] == "default"
    keys = [finding["claim"]["key"] for finding in data["findings"]]
    assert keys == [claim.key for claim in STUDIES[name].claims]
    for finding, claim in zip(data["findings"], STUDIES[name].claims, strict=True):
        assert finding["claim"]["threshold"] == claim.threshold
    assert "/" not in data["provenance"]["hardware"]


@pytest.mark.parametrize("name", list(STUDIES))
def test_every_control_of_a_stored_core_claim_failed_or_the_claim_is_undecided(name):
    data = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    for finding in data["findings"]:
        if finding["control_failed"] is False:
            assert finding["verdict"] == "undecided"


@pytest.mark.parametrize("name", list(STUDIES))
def test_no_stored_claim_fails_that_was_not_tested_as_stated(name):
    data = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    for finding in data["findings"]:
        if finding["verdict"] == "fails":
            assert finding["claim"]["protocol"] == "as stated", finding["claim"]["key"]


@pytest.mark.parametrize("name", list(STUDIES))
def test_stored_claims_are_today_s_in_every_word(name):
    data = json.loads((ROOT / "docs" / "results" / f"{name}.json").read_text(encoding="utf-8"))
    stored = [finding["claim"] for finding in data["findings"]]
    for old, claim in zip(stored, STUDIES[name].claims, strict=True):
        for field in ("source", "protocol", "kind", "side"):
            assert old[field] == getattr(claim, field)


def test_a_page_says_at_which_scale_an_effect_was_not_seen():
    for name, study in STUDIES.items():
        page = (ROOT / "docs" / f"studies-{name}.md").read_text(encoding="utf-8")
        if "not seen at this scale" in page:
            assert study.at in page
