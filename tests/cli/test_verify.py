"""`orbitlens verify`: a ledger on the terminal and in a file; a broken statement is an error."""

import json
from functools import partial

import jaxtyping
import pytest
from typer.testing import CliRunner

from orbitlens.cli.app import app
from orbitlens.theory.certificates import certify
from orbitlens.verifying import falsifier


@pytest.fixture(autouse=True)
def unchecked_shapes():
    """Hundreds of systems go without the tests' own check of shapes."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


def run(*arguments):
    return CliRunner().invoke(app, ["verify", *arguments], env={"COLUMNS": "100"})


def test_a_ledger_is_printed_and_written(tmp_path):
    outcome = run("--systems", "40", "--seed", "5", "--json", str(tmp_path / "ledger.json"))
    assert outcome.exit_code == 0
    assert "40 systems" in outcome.output
    assert "0 violations" in outcome.output
    written = json.loads((tmp_path / "ledger.json").read_text())
    assert (written["kind"], written["n_systems"], written["seed"]) == ("ledger", 40, 5)


def test_a_broken_statement_ends_with_one(monkeypatch):
    false = certify("T5", [], margin=0.0, conclusion="", numbers={"rate": 0.0, "drift": 0.0})
    sceptic = partial(falsifier.verify, printed=lambda system, tokens: [false])
    monkeypatch.setattr(falsifier, "verify", sceptic)
    outcome = run("--systems", "160")
    assert outcome.exit_code == 1
    assert "broken: T5" in outcome.output


def test_no_systems_is_a_user_error():
    assert run("--systems", "0").exit_code != 0
