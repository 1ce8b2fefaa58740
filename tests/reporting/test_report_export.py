"""CSV and PNG files, views in notebooks, and reports of real models."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from orbitlens.reporting.inputs import ReportOptions
from typer.testing import CliRunner

import orbitlens
from orbitlens.cli.app import app
from orbitlens.errors import InputError, MissingPackageError, OrbitlensError
from orbitlens.flows.integrate import simulate
from orbitlens.flows.setup import Setup, build
from orbitlens.flows.system import system_of_heads
from orbitlens.reporting import export
from orbitlens.reporting.compact import reason
from orbitlens.reporting.data import SECTIONS
from orbitlens.reporting.page import render
from orbitlens.reporting.spectra import offsets, spectra, weights_of
from orbitlens.reporting.words import in_words
from orbitlens.theory.positional import maps_at_offset
from orbitlens.theory.rates import head_rates


@pytest.fixture(scope="module")
def data_file(report_data, tmp_path_factory):
    file = tmp_path_factory.mktemp("data") / "report.json"
    file.write_text(json.dumps(report_data.to_json()))
    return file


def run(*arguments):
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


# --- CSV and PNG ---


def test_csv_files_have_the_numbers_of_the_json(data_file, report_data, tmp_path):
    assert (
        run("--data", data_file, "-o", tmp_path / "r.html", "--csv", tmp_path / "csv").exit_code
        == 0
    )
    tables = {}
    for file in (tmp_path / "csv").glob("*.csv"):
        with file.open(newline="", encoding="utf-8") as stream:
            tables[file.stem] = list(csv.DictReader(stream))
    first = report_data.to_json()["models"][0]
    own = [row for row in tables["heads"] if row["model"] == first["name"]]
    heads = [head for layer in first["scan"]["layers"] for head in layer["heads"]]
    assert [float(row["index"]) for row in own] == [h["expansion_index"] for h in heads]
    depth = [r for r in tables["depth"] if r["model"] == first["name"] and r["quantity"] == "mlp"]
    wanted = [layer["mlp"]["measured_log_change"] for layer in first["trace"]["layers"]]
    assert [float(row["measured"]) for row in depth] == wanted
    ends = first["bands"]["twin"]["parts"]["mlp"]
    assert [float(row["untrained twin, highest"]) for row in depth] == [high for _, high in ends]
    assert len(tables["models"]) == 2
    assert {
        "orbits",
        "flows",
        "rates",
        "eigenvalues",
        "offsets",
        "order",
        "slices",
        "checks",
    } <= set(tables)


def test_pictures_of_every_section(report_data, tmp_path):
    data = replace(report_data, models=report_data.models[:1]).to_json()
    (tmp_path / "r.json").write_text(json.dumps(data))
    out = tmp_path / "png"
    assert (
        run("--data", tmp_path / "r.json", "-o", tmp_path / "r.html", "--png", out).exit_code == 0
    )
    sections = ("heads", "depth", "agreement", "orbits", "order", "slices")
    wanted = {f"{data['models'][0]['name']}-{name}.png" for name in sections}
    assert {file.name for file in out.iterdir()} == wanted
    for file in out.iterdir():
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 5000


def test_hostile_names_stay_in_their_folder_and_start_no_formula(hostile_json, tmp_path):
    hostile_json["models"][0]["name"] = "=../../x"
    files = export.write_csv(hostile_json, tmp_path)
    assert {file.parent for file in files} == {tmp_path}
    assert "\n'=../../x," in (tmp_path / "models.csv").read_text()
    assert export.file_name("../../x", 0) == "x"


def test_folders_that_cannot_be_written_are_refused_before_anything_runs(data_file, tmp_path):
    (tmp_path / "file").write_text("")
    for option in ("--csv", "--png"):
        result = run(
            "--data", data_file, "-o", tmp_path / "r.html", option, tmp_path / "file" / "x"
        )
        assert isinstance(result.exception, InputError)
        assert option in str(result.exception)
    assert not (tmp_path / "r.html").exists()


def test_pictures_without_matplotlib_say_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"orbitlens\[plot\]"):
        export.check_pictures()


# --- notebooks ---


class Texts(HTMLParser):
    """The text of a frame's page, and whether it has a script."""

    def __init__(self, page):
        super().__init__()
        self.text, self.scripts, self.inside = "", 0, None
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.scripts += tag == "script"
        if tag == "iframe":
            self.inside = Texts(dict(attributes)["srcdoc"])

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def results(model_folder):
    """Return one result of each kind, from a tiny model."""
    from orbitlens.reporting.inputs import material

    from orbitlens.order.api import audit
    from orbitlens.order.options import AuditOptions
    from orbitlens.order.subject import make_subject
    from orbitlens.running.loading import build_module
    from orbitlens.tracing.api import trace

    path = model_folder("gpt2")
    checkpoint = orbitlens.load_checkpoint(path)
    model = build_module(path)
    given = material(model, None, "gpt2", ReportOptions(max_tokens=32, context=8, samples=6))
    found = given.audit()
    subject = make_subject(model, n_front=found.n_front, n_after_query=found.n_after_query)
    head = orbitlens.load_layer(checkpoint, 0).head(0)
    system, start = build(Setup(n_tokens=6, until=1.0), system_of_heads([head]))
    return {
        "scan": orbitlens.scan(checkpoint),
        "trace": trace(checkpoint, model, given.batches()),
        "audit": audit(subject, found.items, AuditOptions(permutations=2, slices=False)),
        "trajectory": simulate(system, start, until=1.0),
    }


def test_results_show_themselves_with_their_numbers(results):
    pages = {name: Texts(result._repr_html_()).inside for name, result in results.items()}
    assert all(page.scripts == 0 for page in pages.values())
    index = results["scan"].layers[0].heads[0].expansion_index
    assert f"{index:+.2f}".replace("-", "−") in pages["scan"].text
    assert "Attention" in pages["trace"].text
    assert "Order sensitivity" in pages["audit"].text
    assert results["trajectory"].ending in pages["trajectory"].text


def test_results_plot_their_numbers(results):
    drawn = {name: result.plot() for name, result in results.items()}
    scan = results["scan"]
    assert list(drawn["scan"].data[0].z[0]) == [h.expansion_index for h in scan.layers[0].heads]
    assert [line.name for line in drawn["trace"].data] == ["measured", "predicted", "simulated"]
    measured = [layer.attention.measured_log_change for layer in results["trace"].layers]
    assert list(drawn["trace"].data[0].y) == pytest.approx(measured, rel=1e-5)
    assert len(drawn["audit"].data) >= 2
    assert len(drawn["trajectory"].frames) > 2


def test_a_report_is_made_saved_and_read_again(data_file, tmp_path):
    made = orbitlens.reporting(data_file)
    file = made.save(tmp_path / "r.html")
    assert file.read_text(encoding="utf-8") == render(made.data)
    assert orbitlens.reporting(file).data == made.data
    assert "save" in repr(made)
    with pytest.raises(OrbitlensError, match="cannot be written"):
        made.save(tmp_path / "no" / "r.html")
    with pytest.raises(OrbitlensError, match="nowhere"):
        orbitlens.reporting(tmp_path / "nowhere")


# --- spectra ---


def test_offsets_of_a_head_are_those_of_theory(model_folder):
    checkpoint = orbitlens.load_checkpoint(model_folder("llama-grouped"))
    found = spectra(checkpoint, 12)
    head = orbitlens.load_layer(checkpoint, 1).head(2)
    one = next(s for s in found if (s.layer, s.head) == (1, 2))
    assert list(one.offsets) == offsets(12)
    for step, index in zip(one.offsets, one.offset_index, strict=True):
        wanted = head_rates(maps_at_offset(head, step)).expansion_index
        assert index == pytest.approx(wanted, rel=1e-3)
    assert one.offset_size[0] == 1


def test_layers_that_share_weights_count_once(model_folder):
    checkpoint = orbitlens.load_checkpoint(model_folder("albert"))
    stack = checkpoint.architecture.stacks[0]
    scan = orbitlens.scan(checkpoint)
    shared = {stack.name: weights_of(stack)}
    groups, n_layers = len(set(shared[stack.name])), len(scan.layers)
    assert groups < n_layers
    own = groups * stack.layers[0].n_heads
    assert (
        f"of {own} heads (shared by {n_layers} layers)"
        in in_words(scan, None, None, shared=shared)[0]
    )
    assert {s.layer for s in spectra(checkpoint, 8)} == set(shared[stack.name])
    n_heads = n_layers * stack.layers[0].n_heads
    assert f"of {n_heads} heads" in in_words(scan, None, None)[0]  # not told: all count


def test_reasons_of_certificates_come_back_in_words(report_data, model_folder):
    model = report_data.to_json()["models"][0]
    scan = orbitlens.scan(orbitlens.load_checkpoint(model_folder("llama-grouped")))
    for layer, known in zip(model["scan"]["layers"], scan.layers, strict=True):
        for head, other in zip(layer["heads"], known.heads, strict=True):
            said = [reason(model, certificate) for certificate in head["certificates"]]
            assert said == [certificate.why for certificate in other.certificates]


# --- real models ---

REAL = ("stories260K-llama-hf", "gpt-nano-sort-hf", "vit-mnist-3class-hf", "rxnmapper-albert-hf")
QUICK = ("--max-tokens", "64", "--context", "16", "--controls", "1", "--flows", "2",
         "--permutations", "2", "--samples", "6")  # fmt: skip


def test_real_models_have_every_section_or_a_reason(shared_model, tmp_path):
    page, data = tmp_path / "r.html", tmp_path / "r.json"
    paths = [str(shared_model(name)) for name in REAL]
    command = [sys.executable, "-m", "orbitlens.cli", "report", *paths, *QUICK]
    done = subprocess.run([*command, "-o", page, "--json", data], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no bars where nobody looks
    text = Texts(page.read_text(encoding="utf-8")).text
    for title in SECTIONS.values():
        assert title in text
    models = {model["name"]: model for model in json.loads(data.read_text())["models"]}
    assert set(models) == set(REAL)
    for model in models.values():
        assert all(model[part] is not None for part in ("scan", "trace", "audit", "orbits"))
        assert len(model["words"]) == 5
        assert set(model["missing"]) <= {"shuffled"}
    assert "No shuffled control: patches of images" in text
    assert "8 heads (shared by 12 layers)" in text
