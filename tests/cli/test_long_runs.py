"""What a long command says before and while it runs; and the report that leaves things out."""

import time
from types import SimpleNamespace

import pytest

from orbitlens.cli import output
from orbitlens.cli import report as command
from orbitlens.cli.output import StageLines
from orbitlens.errors import InputError
from orbitlens.reporting.options import ReportOptions
from small_llama import run


@pytest.fixture
def short_patience(monkeypatch):
    monkeypatch.setattr(output, "LONG", 0.05)


@pytest.mark.usefixtures("short_patience")
def test_a_log_has_one_line_for_each_stage_that_takes_long(capsys):
    lines = StageLines()
    for stage, seconds in (
        ("reading", 0.0),
        ("tracing", 0.4),
        ("scanning", 0.0),
        ("auditing", 0.4),
    ):
        lines(stage)
        time.sleep(seconds)
    lines.end()
    time.sleep(0.2)  # what has ended says nothing afterwards
    assert capsys.readouterr().err == "tracing ...\nauditing ...\n"


@pytest.mark.usefixtures("short_patience")
def test_a_report_ends_its_last_stage_when_it_fails(capsys, monkeypatch):
    def fails(*_, step, **__):
        step("tracing")
        raise InputError("no")

    monkeypatch.setattr("orbitlens.reporting.api.report", fails)
    with pytest.raises(InputError):
        command._make([], ReportOptions())
    time.sleep(0.2)
    assert capsys.readouterr().err == ""


def asked(monkeypatch, *arguments):
    """Return the options that a report is made with, without making it."""
    found = []

    def make(models, options, **_):
        found.append(options)
        raise InputError("enough")

    monkeypatch.setattr(command, "_make", make)
    run("report", "orbit-nano-rotary", "--no-cache", *arguments)
    return found[0]


def test_a_fast_report_has_no_controls_and_no_flows(monkeypatch):
    options, plain = asked(monkeypatch, "--fast"), asked(monkeypatch)
    fewer = (options.max_tokens, options.samples, options.permutations)
    assert fewer == (512, 8, 4)
    assert (options.flows, options.controls) == (0, 0)
    assert (plain.max_tokens, plain.flows, plain.controls) == (2048, None, 3)


def test_fast_never_runs_more_than_was_asked_for(monkeypatch):
    options = asked(monkeypatch, "--fast", "--max-tokens", "64", "--samples", "3", "--seed", "5")
    assert (options.max_tokens, options.samples, options.seed) == (64, 3, 5)


def said_beforehand(capsys, n_parameters, options=None):
    command._say_cost([SimpleNamespace(n_parameters=n_parameters)], options or ReportOptions())
    return " ".join(capsys.readouterr().err.split())


def test_what_a_long_report_takes_is_said_beforehand(capsys):
    assert said_beforehand(capsys, 200_000) == ""
    said = said_beforehand(capsys, 1_000_000_000)
    assert "71,680 tokens" in said  # a large model has one run of each control
    assert "48 min of processor time" in said
    assert "--fast" in said


def test_a_fast_report_of_135_million_parameters_takes_a_minute_and_no_quicker_one_is_offered(
    capsys,
):
    fast = command._fast(ReportOptions())
    said = said_beforehand(capsys, 135_000_000, fast)
    assert "4,608 tokens are run: some 1 min of processor time or more" in said
    assert "--fast" not in said
    assert said_beforehand(capsys, 22_000_000, fast) == ""
