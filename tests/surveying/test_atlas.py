"""Atlases: every model is a row, what was done is not done again, a dead worker costs nothing."""

import json
import os
from concurrent.futures import BrokenExecutor, Executor, Future
from pathlib import Path

import pytest

import orbitlens as ol
from orbitlens.reporting.atlas_page import page_of_atlas
from orbitlens.surveying import api
from orbitlens.surveying.api import places_of
from orbitlens.surveying.atlas_entry import read_entry, unread
from small_llama import run, write_small_llama

WEIGHTS = ol.AtlasOptions(trace=False)


@pytest.fixture
def folder(tmp_path):
    for name in ("first", "deeper/second", "third"):
        write_small_llama(tmp_path / "models" / name)
    (tmp_path / "models" / "third" / "model.safetensors").write_bytes(b"nothing")
    return tmp_path / "models"


def test_models_below_a_folder_in_a_list_and_by_name_are_found_once(folder, tmp_path):
    assert [place.rpartition("/")[2] for place in places_of(folder)] == ["second", "first", "third"]
    listed = tmp_path / "list.txt"
    listed.write_text("models/first  # ours\n\nowner/model\nmodels/first\n")
    assert places_of(listed) == [str(folder / "first"), "owner/model"]
    assert places_of([folder / "first", str(folder / "first")]) == [str(folder / "first")]
    (tmp_path / "empty").mkdir()
    with pytest.raises(ol.InputError, match="0 models here"):
        places_of(tmp_path / "empty")


def test_what_an_atlas_says_is_what_the_verbs_say(folder):
    entry = ol.atlas(folder / "first", WEIGHTS).entries[0]
    scanned = ol.scan(folder / "first")
    kinds = [head.orientation for _, head in scanned.heads()]
    assert entry.share("opposed") == kinds.count("opposed") / len(kinds)
    assert [layer.index for layer in entry.layers] == [
        layer.expansion_index for layer in scanned.layers
    ]
    assert entry.not_run == "not asked for"


def test_a_model_that_fits_is_traced():
    options = ol.AtlasOptions(max_tokens=128, context=32)
    entry = ol.atlas("orbit-nano-none", options).entries[0]
    assert entry.n_tokens is not None
    assert entry.not_run is None
    first, last = entry.cosines
    assert -1 <= first <= 1
    assert entry.layers[-1].cosine_after == last
    assert entry.gathering_layers == sum(layer.gathering < 0 for layer in entry.layers)
    small = ol.AtlasOptions(largest=1000)
    assert "more than 1,000" in read_entry("orbit-nano-none", small).not_run


def test_a_model_that_cannot_be_read_is_a_row_with_its_reason(folder):
    result = ol.atlas(folder, WEIGHTS)
    assert len(result.entries) == 3
    (failed,) = [entry for entry in result.entries if entry.not_read]
    assert failed.name == "third"
    assert "not a whole safetensors file" in failed.not_read
    assert "2 of 3 models were read" in result.summary()
    assert result.to_pandas()["why not"].notna().all()


def test_what_was_done_is_not_done_again(folder, tmp_path, monkeypatch):
    keep, seen = tmp_path / "keep", []

    def counted(place, options):
        seen.append(place)
        return read_entry(place, options)

    monkeypatch.setattr(api, "read_entry", counted)
    first = ol.atlas(folder, WEIGHTS, keep_in=keep)
    assert len(seen) == 3
    again = ol.atlas(folder, WEIGHTS, keep_in=keep)
    assert seen[3:] == [str(folder / "third")]  # a failure is tried again
    assert [e.layers for e in again.entries] == [e.layers for e in first.entries]
    write_small_llama(folder / "first", rms_norm_eps=1e-5)  # another model in its place
    ol.atlas(folder, WEIGHTS, keep_in=keep)
    assert str(folder / "first") in seen[4:]
    for file in keep.glob("model-*.json"):
        file.write_text("{")
    assert len(ol.atlas(folder, WEIGHTS, keep_in=keep).read) == 2


class FragileExecutor(Executor):
    """Runs work at once; the model called `deadly` kills it, and all that comes after."""

    def __init__(self, deadly):
        self.deadly, self.is_dead = deadly, False

    def submit(self, function, place, options):
        future = Future()
        self.is_dead = self.is_dead or self.deadly in place
        if self.is_dead:
            future.set_exception(BrokenExecutor("killed"))
        else:
            future.set_result(function(place, options))
        return future


def test_a_worker_that_dies_costs_no_model_but_the_deadly_one(folder, monkeypatch):
    monkeypatch.setattr(api, "local_workers", lambda n: FragileExecutor("first"))
    result = ol.atlas([folder / "first", folder / "deeper" / "second"], WEIGHTS, workers=1)
    deadly, other = result.entries
    assert "died twice" in deadly.not_read
    assert other.not_read is None


def dies_once(place, options):
    """Kill the worker at the first try of the first model."""
    marker = Path(place) / "died"
    if place.endswith("first") and not marker.exists():
        marker.write_text("")
        os._exit(9)  # as kill -9: no goodbye to the scheduler
    return unread(place, "fake")


def test_a_worker_of_dask_that_is_killed_costs_no_model(folder, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="Dask is an optional extra")
    monkeypatch.setattr(api, "read_entry", dies_once)
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        result = ol.atlas(folder, WEIGHTS, cluster=cluster.scheduler_address)
    assert (folder / "first" / "died").exists()
    assert [entry.not_read for entry in result.entries] == ["fake"] * 3


def test_an_error_of_ours_in_a_worker_is_a_row_too(folder, monkeypatch):
    class Failing(FragileExecutor):
        def submit(self, function, place, options):
            future = Future()
            future.set_exception(ZeroDivisionError("oh"))
            return future

    monkeypatch.setattr(api, "local_workers", lambda n: Failing("-"))
    assert "ZeroDivisionError: oh" in ol.atlas(folder / "first", workers=1).entries[0].not_read


def test_an_atlas_is_saved_and_its_page_stands_alone(folder, tmp_path):
    result = ol.atlas(folder, WEIGHTS)
    assert ol.Atlas.load(result.save(tmp_path / "atlas.json")) == result
    page = page_of_atlas(result)
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert page.count("<article>") == 2
    assert "not a whole safetensors file" in page


def test_a_hostile_name_is_shown_and_not_obeyed():
    atlas = ol.Atlas(options=WEIGHTS, entries=(unread("a/<script>alert(1)</script>", "<b>why"),))
    page = page_of_atlas(atlas)
    assert "<script>alert" not in page
    assert "<b>why" not in page


def test_the_command_writes_page_and_json(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(api, "local_workers", lambda n: FragileExecutor("-nobody-"))
    outcome = run(
        "atlas", folder, "--weights-only", "--keep", tmp_path / "keep",
        "-o", tmp_path / "a.html", "--json", tmp_path / "a.json",
    )  # fmt: skip
    assert outcome.code == 0, outcome.err
    assert "2 of 3 models were read" in outcome.out
    assert json.loads((tmp_path / "a.json").read_text())["kind"] == "atlas"
    assert (tmp_path / "a.html").stat().st_size > 10_000
