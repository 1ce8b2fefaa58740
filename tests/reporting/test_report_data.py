"""Results to a report to JSON and back; sentences; what is missing has a reason."""

import json
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from typer.testing import CliRunner

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.cli.app import app
from orbitlens.errors import InputError, OrbitlensError
from orbitlens.order.audit_result import Audit
from orbitlens.reporting import gather as gathering
from orbitlens.reporting import measured
from orbitlens.reporting.api import report
from orbitlens.reporting.gather import gather_report
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.orbits import (
    around_shared_direction,
    principal_positions,
    spread_out,
)
from orbitlens.reporting.report import Report
from orbitlens.reporting.sections import SECTIONS
from orbitlens.running import model as running_model
from orbitlens.running.model import load
from orbitlens.scanning.scan_result import Scan
from orbitlens.tracing.trace_result import DirectionTrace, Trace
from small_llama import run

TINY = ReportOptions(max_tokens=32, context=8, samples=6, permutations=2, flows=0, controls=0)


class Reader(HTMLParser):
    """Collects the texts of a page, by the section they are in."""

    def __init__(self, page):
        super().__init__()
        self.section, self.texts, self.values, self.scripts = "", {}, {}, 0
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if tag == "section":
            self.section = given["id"]
        self.scripts += tag == "script"
        if "data-v" in given:
            self.values.setdefault(self.section, set()).add(float(given["data-v"]))

    def handle_data(self, data):
        self.texts[self.section] = self.texts.get(self.section, "") + data


def refused(*arguments):
    result = CliRunner().invoke(app, ["report", *map(str, arguments)])
    assert isinstance(result.exception, OrbitlensError), (result.output, result.exception)
    return str(result.exception)


# --- data and JSON ---


def test_a_report_comes_back_the_same_from_json_and_from_the_page_itself(
    report_data, page_file, tmp_path
):
    file = report_data.save(tmp_path / "report.json")
    assert Report.load(file) == report_data
    assert Report.load(page_file) == report_data
    assert Report.load(page_file).html == page_file.read_text(encoding="utf-8")
    assert json.loads(file.read_text())["kind"] == "report"


def test_a_report_is_data_typed_to_the_leaves(report_data):
    model = report_data.models[0]
    assert isinstance(model.scan, Scan) and isinstance(model.trace, Trace)
    assert isinstance(model.audit, Audit) and isinstance(model.trace.twin, Trace)
    assert isinstance(model.trace.layers[0].directions, DirectionTrace)


def test_every_result_is_there_for_a_decoder(report_data):
    model = report_data.models[0]
    assert not dict(model.missing)
    assert model.scan.layers[0].heads[0].data_aware is not None
    assert len(model.trace.twin.layers) == len(model.shuffled.layers) == 3
    assert len(model.flows) == 3
    assert len(model.orbits.positions) == 4  # the input and three layers


def test_the_sentences_carry_the_numbers_of_the_results(report_data):
    model = report_data.models[0]
    shares = [head.share for layer in model.trace.layers for head in layer.directions.heads]
    gather, spread = sum(s < -0.01 for s in shares), sum(s > 0.01 for s in shares)
    said = next(text for text in model.words if text.startswith("Measured,"))
    assert f"Measured, {gather} of {len(shares)} heads" in said
    assert f"and {spread} spread" in said
    assert any(text.startswith("What is uncertain:") for text in model.words)
    assert any("inputs are random" in text for text in model.words)


def test_sentences_are_made_of_the_numbers_and_never_read_from_a_file(report_data):
    data = json.loads(json.dumps(report_data.to_json()))
    assert data["models"][0]["words"] == list(report_data.models[0].words)
    data["models"][0]["words"] = ["Attention spreads directions 9-fold."]
    again = Report.from_json(data)
    assert again == report_data
    assert "9-fold" not in again.html


def test_what_a_vision_model_has_not_is_said(report_data):
    assert "images" in report_data.models[1].missing["shuffled"]
    assert any("noise" in note for note in report_data.models[1].notes)


def test_the_flow_of_the_most_opposed_and_the_most_aligned_head_is_there(report_data):
    model = report_data.models[0]
    places = {(layer.layer, head.head): head.expansion_index for layer, head in model.scan.heads()}
    shown = {(flow.layer, flow.head) for flow in model.flows}
    assert {min(places, key=places.get), max(places, key=places.get)} <= shown


def test_a_part_that_fails_leaves_a_report_that_says_so(model_folder, monkeypatch):
    def fail(*_, **__):
        raise InputError("the machine ran out of memory")

    monkeypatch.setattr(measured, "trace_and_covariances", fail)
    monkeypatch.setattr(gathering, "audit", fail)
    read = Reader(gather_report([model_folder("gpt2")], TINY).html)
    for section in ("depth", "agreement", "order", "slices"):
        assert "Not here: the machine ran out of memory" in read.texts[section]
    assert "no token was followed: the machine ran out of memory" in read.texts["story"]
    assert "What each head does to directions" in read.texts["story"]  # from the weights


def test_a_model_that_cannot_run_is_still_scanned(model_folder):
    read = Reader(gather_report([model_folder("whisper")], TINY).html)
    assert "hears sound" in read.texts["story"]
    assert "What each head does to directions" in read.texts["story"]


@pytest.mark.parametrize("name", ["albert", "t5"])
def test_encoders_shared_layers_and_two_stacks_have_a_report(model_folder, name):
    data = gather_report([model_folder(name)], TINY)
    model, read = data.models[0], Reader(data.html)
    assert model.trace is not None and model.orbits is not None
    asked = {section.key for section in SECTIONS if section.body} - {"cuts"}  # by --cut alone
    assert asked <= set(read.texts)
    assert "cuts" not in read.texts


# --- orbits ---


def test_tokens_in_a_plane_keep_their_distances(generator):
    angles = torch.rand(4, 6, generator=generator, dtype=torch.float64) * 6.28
    plane = torch.stack([angles.cos(), angles.sin()], dim=-1)
    turn, _ = torch.linalg.qr(torch.randn(7, 7, generator=generator, dtype=torch.float64))
    places, explained = principal_positions(plane @ turn[:2])
    before = torch.cdist(plane.reshape(-1, 2), plane.reshape(-1, 2))
    after = torch.cdist(places.reshape(-1, 3), places.reshape(-1, 3))
    assert torch.allclose(before, after, atol=1e-9)
    assert explained.tolist()[2] < 1e-20
    assert sum(explained.tolist()) == pytest.approx(1)


def test_length_does_not_move_a_token(generator):
    x = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    longer = x * torch.rand(3, 5, 1, generator=generator, dtype=torch.float64).add(0.5)
    assert torch.allclose(principal_positions(x)[0].abs(), principal_positions(longer)[0].abs())


def test_the_centre_of_orbits_is_the_shared_direction_and_rings_are_exact(generator):
    x = torch.randn(3, 6, 5, generator=generator, dtype=torch.float64) + 0.5
    shared, bearings = around_shared_direction(x)
    unit = x / x.norm(dim=-1, keepdim=True)
    middle = unit.mean(dim=1)
    # The mean cosine with the mean direction is its length, which the mean cosine of pairs fixes.
    assert torch.allclose(shared.mean(dim=1), middle.norm(dim=-1))
    pairs = (unit @ unit.transpose(1, 2)).sum(dim=(1, 2)) - 6
    assert torch.allclose(shared.mean(dim=1) ** 2, (6 + pairs) / 36)
    assert bool((bearings.abs() <= 3.1416).all())


def test_few_of_many_keep_both_ends():
    assert spread_out(100, 5)[0] == 0
    assert spread_out(100, 5)[-1] == 99
    assert len(spread_out(100, 5)) == 5


# --- the page as text ---


def test_tables_carry_the_values_of_the_json(report_data, page_file):
    read = Reader(page_file.read_text(encoding="utf-8"))
    for model in report_data.to_json()["models"]:
        layers = model["trace"]["layers"]
        for part in ("attention", "mlp", "norm"):
            assert {x[part]["measured_log_change"] for x in layers} <= read.values["depth"]
            assert {x["directions"][part] for x in layers} <= read.values["depth"]
        assert {v for x in layers for v in x["metrics"].values()} <= read.values["depth"]
        assert {x["attention"]["predicted_log_change"] for x in layers} <= read.values["agreement"]
        heads = [h for x in model["scan"]["layers"] for h in x["heads"]]
        assert {h["expansion_index"] for h in heads} <= read.values["story"]
        shares = {h["share"] for x in layers for h in x["directions"]["heads"]}
        assert shares <= read.values["story"]
        cell = model["audit"]["cells"][model["audit"]["model"]["own_cell"]]
        value = cell["mean_js_bits"]
        assert (cell["mean_relative_change"] if value is None else value) in read.values["order"]
        assert {c["value"] for c in model["audit"]["checks"]} <= read.values["trust"]


def test_a_hostile_name_or_token_stays_text(hostile_report):
    page = hostile_report.html
    assert Reader(page).scripts == 3  # the report, its panels, and our own
    assert "<img src=x" not in page


def test_the_page_names_nothing_elsewhere(page_file):
    page = page_file.read_text(encoding="utf-8")
    own = page.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert "http:" not in own and "https:" not in own


# --- the command ---


def test_the_command_writes_page_and_json_and_draws_them_anew(model_folder, tmp_path):
    page, data, again = (tmp_path / name for name in ("a.html", "a.json", "b.html"))
    small = ["--max-tokens", "32", "--context", "8", "--samples", "6", "--permutations", "2"]
    result = CliRunner().invoke(
        app,
        ["report", model_folder("gpt2"), "-o", str(page), "--json", str(data), "--flows", "0",
         "--controls", "0", *small],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.stdout.splitlines())  # stderr is a log here
    result = CliRunner().invoke(app, ["report", "--data", str(data), "-o", str(again)])
    assert result.exit_code == 0, result.output
    assert again.read_bytes() == page.read_bytes()


def test_what_is_no_model_or_no_place_is_refused(model_folder, tmp_path):
    assert "no model" in refused("-o", tmp_path / "r.html")
    assert "nowhere" in refused(tmp_path / "nowhere", "-o", tmp_path / "r.html")
    assert "cannot be written" in refused(model_folder("gpt2"), "-o", tmp_path / "no" / "r.html")
    assert "cannot be written" in refused(model_folder("gpt2"), "-o", tmp_path)
    assert "--context 1" in refused(model_folder("gpt2"), "--context", 1, "-o", tmp_path / "r.html")
    assert not (tmp_path / "r.html").exists()


def test_broken_data_are_refused_and_an_old_page_stays(report_data, tmp_path):
    page, file = tmp_path / "r.html", tmp_path / "r.json"
    page.write_text("old")
    whole = report_data.to_json()
    lost, bare = (json.loads(json.dumps(whole)) for _ in range(2))
    del lost["models"][0]["scan"]["layers"][0]["heads"]
    del bare["models"][0]["trace"]["layers"][0]["mlp"]
    cases = {
        "not JSON": "{",
        "no saved result": "[1]",
        f"format {Report.FORMAT + 1}": json.dumps({**whole, "format": Report.FORMAT + 1}),
        "damaged": json.dumps({**whole, "models": [{"name": "x"}]}),
        "certificates cannot be read": json.dumps(lost),
        "trace.layers[0].mlp is missing": json.dumps(bare),
    }
    for words, text in cases.items():
        file.write_text(text)
        assert words in refused("--data", file, "-o", page)
    assert "cannot be read" in refused("--data", tmp_path / "none.json", "-o", page)
    assert page.read_text() == "old"


@pytest.mark.parametrize("error", [MemoryError(), torch.OutOfMemoryError("out of memory")])
def test_running_out_of_memory_leaves_a_report_that_says_so(model_folder, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(measured, "trace_and_covariances", fail)
    monkeypatch.setattr(gathering, "audit", fail)
    model = gather_report([model_folder("gpt2")], TINY).models[0]
    assert model.scan is not None
    for part in ("trace", "audit"):
        assert "ran out of memory" in model.missing[part]
        assert "fewer tokens" in model.missing[part]


def test_a_bug_in_a_part_is_not_hidden(model_folder, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("a bug")

    monkeypatch.setattr(measured, "trace_and_covariances", fail)
    with pytest.raises(RuntimeError, match="a bug"):
        gather_report([model_folder("gpt2")], TINY)


def test_bad_input_ends_with_exit_code_2_and_one_line(tmp_path):
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "text").write_text("no model")
    out = tmp_path / "r.html"
    for arguments in (
        ("--data", tmp_path / "broken.json", "-o", out),
        (tmp_path / "text", "-o", out),
        (tmp_path, "-o", out),
        (tmp_path, "-o", tmp_path / "no" / "r.html"),
        (tmp_path, "--text", tmp_path / "none.txt", "-o", out),
    ):
        outcome = run("report", *arguments)
        assert (outcome.code, outcome.out) == (2, ""), arguments
        assert outcome.err.startswith("orbitlens: ")
        assert "Traceback" not in outcome.err
    assert not out.exists()


def test_a_page_that_cannot_be_finished_leaves_the_old_one(report_data, tmp_path, monkeypatch):
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    page.write_text("old")
    data.write_text(json.dumps(report_data.to_json()))

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr("pathlib.Path.replace", full)
    assert "no space left" in refused("--data", data, "-o", page)
    assert page.read_text() == "old"
    assert {file.name for file in tmp_path.iterdir()} == {"r.html", "r.json"}


def test_bands_span_the_runs_of_a_control(report_data):
    model = report_data.models[0]
    band = model.bands["twin"]
    assert band.runs == 2
    first = [layer.attention.measured_log_change for layer in model.trace.twin.layers]
    for value, (low, high) in zip(first, band.parts["attention"], strict=True):
        assert low <= value <= high
    assert "shuffled" not in report_data.models[1].bands


def test_names_that_are_alike_are_told_apart():
    assert gathering._names(["x", "x", "y"]) == ["x (1)", "x (2)", "y"]


# --- what it costs ---


def test_a_report_builds_the_model_once_and_reads_each_tensor_once(model_folder, monkeypatch):
    built, read = [], []
    build_module, read_array = running_model.build_module, Checkpoint.read
    monkeypatch.setattr(
        running_model,
        "build_module",
        lambda *given, **more: built.append(given) or build_module(*given, **more),
    )
    monkeypatch.setattr(
        Checkpoint, "read", lambda self, name: read.append(name) or read_array(self, name)
    )
    found = gather_report([model_folder("llama-grouped")], replace(TINY, flows=2))
    assert not set(found.models[0].missing) - {"twin", "shuffled"}
    assert len(built) == 1
    assert read and len(read) == len(set(read))


def test_a_report_runs_as_many_tokens_as_it_was_asked_for(model_folder):
    few, more = (
        gather_report([model_folder("gpt2")], replace(TINY, max_tokens=n)).models[0].trace
        for n in (32, 64)
    )
    assert (few.n_tokens, more.n_tokens) == (32, 64)


def test_token_ids_are_used_where_there_is_a_tokenizer_and_refused_beside_a_text(shared_model):
    model = load(shared_model("stories260K-llama-hf"))
    assert model.tokenizer is not None
    ids = [[411 + k for k in range(8)]] * 4  # printable ones: others are shown escaped
    found = report(model, tokens=ids, options=TINY)
    names = [model.tokenizer.decode([k]) for k in ids[0]]
    assert list(found.models[0].orbits.tokens) == names
    assert found.settings.tokens == "given"
    with pytest.raises(InputError, match="give one of them"):
        report(model, "a text", tokens=ids, options=TINY)


def test_a_title_is_the_name_of_the_model_and_not_of_a_folder_called_model(model_folder, tmp_path):
    shutil.copytree(model_folder("gpt2"), tmp_path / "tiny-sorter" / "model")
    found = gather_report([tmp_path / "tiny-sorter" / "model"], TINY)
    assert "<h1>Orbits of model</h1>" not in found.html
    assert f"<h1>Orbits of {found.models[0].name}</h1>" in found.html
    assert found.models[0].name != "model"
