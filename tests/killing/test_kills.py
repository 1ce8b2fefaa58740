"""A smoke of `make kills`; tests/lab/test_ownership.py kills and doubles training runs."""

import os

import pytest

from killing import kills
from orbitlens.lab import ownership

POSIX = pytest.mark.skipif(os.name != "posix", reason="kill -9 is Unix's")


@POSIX
@pytest.mark.parametrize(("kind", "n_kills"), [("sweep", 2), ("study", 1)])
def test_what_was_killed_ends_as_if_nothing_had_happened(kind, n_kills):
    n_hit, _, n_differ = kills.rounds(kind, n_kills)
    assert n_hit >= n_kills
    assert n_differ == 0


@POSIX
def test_a_report_is_always_one_of_those_written(tmp_path, monkeypatch):
    """Small stand-ins: the page and the file are written as a report's are."""

    class Small:
        def __init__(self, letter):
            self.text = letter * 300_000

        def save(self, path):
            from orbitlens.files import write_whole

            write_whole(path, (self.text if path.suffix == ".html" else f'"{self.text}"').encode())

    monkeypatch.setattr(kills, "_REPORTS", [Small("a"), Small("b")])
    n_hit, _, n_differ = kills.rounds("report", 4)
    assert n_hit >= 4
    assert n_differ == 0


@POSIX
@pytest.mark.parametrize("kind", ["sweep", "study"])
def test_of_two_writers_one_is_refused_and_nothing_is_lost(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(ownership, "PATIENCE", 0.05)
    whole, _ = kills.undisturbed(kills.WORK[kind], tmp_path / "alone" / "out")
    said, left = kills.two_writers(kind, tmp_path / "both" / "out")
    assert "done" in said
    assert all(each == "done" or "another process" in each for each in said)
    assert left == whole


@POSIX
def test_a_difference_would_be_seen(tmp_path):
    kills.train_one(tmp_path / "a")
    before = kills.content(tmp_path / "a")
    log = next((tmp_path / "a").rglob("metrics.jsonl"))
    log.write_text(log.read_text() + '{"step": 61}\n')
    assert kills.content(tmp_path / "a") != before
