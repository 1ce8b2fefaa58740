"""A smoke of `make fuzz`: past failures, some damaged files, and that findings are found."""

import os
import sys
import time

import pytest

from fuzzing import cases, corpus, fuzz, wholes

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="limits of processes are Linux's")
FEW = 240  # files


@pytest.fixture(scope="module", autouse=True)
def _made():
    wholes.make_all()


@LINUX
def test_past_failures_are_read_or_refused(tmp_path):
    todo = [(name, 0) for name in corpus.CORPUS]
    ledger = fuzz.run_cases(todo, tmp_path / "case", corpus.make)
    assert ledger.findings == []
    assert sum(ledger.counts.values()) == len(corpus.CORPUS)


@LINUX
def test_damaged_files_of_every_format_are_read_or_refused(tmp_path):
    kinds = cases.FORMATS
    todo = [(kinds[k % len(kinds)], k // len(kinds)) for k in range(FEW)]
    ledger = fuzz.run_cases(todo, tmp_path / "case", cases.make)
    assert ledger.findings == []
    for kind in kinds:  # a format whose files are all refused, or all read, shows little
        assert ledger.counts[kind, "read"] > 5
        assert ledger.counts[kind, "refused"] > 5


def planted(what, number, folder):
    """Return something that a case must not do."""

    def hungry():
        return len(bytearray(4 * 10**8))  # a system may take back idle pages of the test meanwhile

    def slow():
        end = time.process_time() + 1.3
        while time.process_time() < end:
            pass

    def raises():
        return {}["missing"]

    return {
        "raised": raises,
        "large": hungry,
        "slow": slow,
        "died": lambda: os._exit(3),
        "hung": lambda: time.sleep(120),
        "fine": lambda: None,
    }[what]


@LINUX
def test_whatever_is_wrong_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(fuzz, "SECONDS", 1.0)
    monkeypatch.setattr(fuzz, "MEGABYTES", 50)
    monkeypatch.setattr(fuzz, "PATIENCE", 20.0)
    kinds = ["fine", "raised", "large", "slow", "died", "fine", "hung", "fine"]
    todo = [(kind, k) for k, kind in enumerate(kinds)]
    ledger = fuzz.run_cases(todo, tmp_path / "case", planted)
    told = {kind: what.partition(":")[0] for kind, _, what in ledger.findings}
    assert told == {kind: kind for kind in kinds if kind != "fine"}
    assert ledger.counts["fine", "read"] == 3


def test_a_case_depends_on_its_format_and_number_alone(tmp_path):
    for kind in cases.FORMATS:
        cases.make(kind, 5, tmp_path / "a")
        cases.make(kind, 6, tmp_path / "b")
        cases.make(kind, 5, tmp_path / "b")
        one, other = (
            {
                file.name: file.read_bytes()
                for file in (tmp_path / name).rglob("*")
                if file.is_file()
            }
            for name in "ab"
        )
        assert one == other
