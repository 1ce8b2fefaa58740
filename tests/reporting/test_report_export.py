"""CSV and PNG files, views in notebooks, and reports of real models."""

import csv
import json
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from typer.testing import CliRunner

import orbitlens
from orbitlens.cli.app import app
from orbitlens.errors import InputError, MissingPackageError, OrbitlensError
from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.setup import Setup, build
from orbitlens.flows.system import system_of_heads
from orbitlens.reporting import export
from orbitlens.reporting.report import Report
from orbitlens.reporting.sections import SECTIONS
from orbitlens.reporting.spectra import offsets, spectra_of, weights_of
from orbitlens.scanning.words import count_sentence
from orbitlens.theory.positional import maps_at_offset
from orbitlens.theory.rates import head_rates


@pytest.fixture(scope="module")
def data_file(report_data, tmp_path_factory):
    return report_data.save(tmp_path_factory.mktemp("data") / "report.json")


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
    quantities = {row["quantity"]: row for row in tables["models"]}
    names = [model.name for model in report_data.models]
    difference = float(quantities["ΔS, net"][f"{names[1]} − {names[0]}"])
    nets = [float(quantities["ΔS, net"][name]) for name in names]
    assert difference == pytest.approx(nets[1] - nets[0])
    shares = [h["share"] for x in first["trace"]["layers"] for h in x["directions"]["heads"]]
    assert [float(row["measured ΔS"]) for row in own] == shares
    assert {
        "waterfall",
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
    data = replace(report_data, models=report_data.models[:1])
    data.save(tmp_path / "r.json")
    out = tmp_path / "png"
    assert (
        run("--data", tmp_path / "r.json", "-o", tmp_path / "r.html", "--png", out).exit_code == 0
    )
    sections = ("heads", "depth", "agreement", "orbits", "order", "positions", "slices")
    wanted = {f"{data.models[0].name}-{name}.png" for name in sections}
    assert {file.name for file in out.iterdir()} == wanted
    for file in out.iterdir():
        assert file.read_bytes().startswith(b"\x89PNG")
        assert file.stat().st_size > 5000


def test_hostile_names_stay_in_their_folder_and_start_no_formula(hostile_report, tmp_path):
    first, second = hostile_report.models
    files = export.write_csv([replace(first, name="=../../x"), second], tmp_path)
    assert {file.parent for file in files} == {tmp_path}
    assert "\n'=../../x," in (tmp_path / "heads.csv").read_text()
    assert ",'=../../x," in (tmp_path / "models.csv").read_text().partition("\n")[0]
    assert export.file_name("../../x", 0) == "x"


def test_folders_that_cannot_be_written_are_refused_before_anything_runs(data_file, tmp_path):
    (tmp_path / "file").write_text("")
    for option in ("--csv", "--png"):
        result = run(
            "--data", data_file, "-o", tmp_path / "r.html", option, tmp_path / "file" / "x"
        )
        assert isinstance(result.exception, InputError)
        assert "cannot be written to" in str(result.exception)
    assert not (tmp_path / "r.html").exists()


def test_pictures_without_matplotlib_say_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingPackageError, match=r"orbitlens\[plot\]"):
        export.write_png([], tmp_path)


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
    model = orbitlens.load(model_folder("gpt2"))
    ids = torch.randint(40, (4, 8), generator=torch.Generator().manual_seed(0))
    system, start = build(Setup(n_tokens=6, until=1.0), system_of_heads([model.head(0, 0)]))
    return {
        "scan": orbitlens.scan(model),
        "trace": orbitlens.trace(model, ids),
        "audit": orbitlens.audit(
            model, ids, options=orbitlens.AuditOptions(permutations=2, slices=False)
        ),
        "trajectory": integrate_flow(system, start, until=1.0),
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
    bars = {bar.name: list(bar.y) for bar in drawn["trace"].data}
    changes = [layer.directions.attention for layer in results["trace"].layers]
    assert bars["attention"] == pytest.approx(changes, rel=1e-5)
    assert len(drawn["audit"].data) >= 2
    assert len(drawn["trajectory"].frames) > 2


def test_a_report_is_saved_as_a_page_or_as_data_and_read_again(report_data, tmp_path):
    page, data = (report_data.save(tmp_path / name) for name in ("r.html", "r.json"))
    assert page.read_text(encoding="utf-8") == report_data.html
    assert Report.load(page) == Report.load(data) == report_data
    assert len(repr(report_data).splitlines()) <= 3
    with pytest.raises(OrbitlensError, match="cannot be written"):
        report_data.save(tmp_path / "no" / "r.html")
    for name in ("nowhere.html", "nowhere.json"):
        with pytest.raises(OrbitlensError, match="nowhere"):
            Report.load(tmp_path / name)


def test_a_report_is_sentences_a_table_of_heads_and_a_figure(report_data):
    words = report_data.summary()
    assert all(f"{model.name}:" in words for model in report_data.models)
    assert all(sentence in words for model in report_data.models for sentence in model.words)
    table = report_data.to_pandas()
    heads = [head for model in report_data.models for _, head in model.scan.heads()]
    assert table["index"].tolist() == [head.expansion_index for head in heads]
    assert set(table["model"]) == {model.name for model in report_data.models}
    assert report_data.plot().data


# --- spectra ---


def test_offsets_of_a_head_are_those_of_theory(model_folder):
    model = orbitlens.load(model_folder("llama-grouped"))
    found = spectra_of(model, 12)
    head = model.head(1, 2)
    one = next(s for s in found if (s.layer, s.head) == (1, 2))
    assert list(one.offsets) == offsets(12)
    for step, index in zip(one.offsets, one.offset_index, strict=True):
        wanted = head_rates(maps_at_offset(head, step)).expansion_index
        assert index == pytest.approx(wanted, rel=1e-3)
    assert one.offset_size[0] == 1


def test_layers_that_share_weights_count_once(model_folder):
    model = orbitlens.load(model_folder("albert"))
    stack = model.architecture.stacks[0]
    scan = orbitlens.scan(model)
    shared = {stack.name: weights_of(stack)}
    groups, n_layers = len(set(shared[stack.name])), len(scan.layers)
    assert groups < n_layers
    own = groups * stack.layers[0].n_heads
    assert f"of {own} heads (shared by {n_layers} layers)" in count_sentence(scan, shared)
    assert {s.layer for s in spectra_of(model, 8)} == set(shared[stack.name])
    n_heads = n_layers * stack.layers[0].n_heads
    assert f"of {n_heads} heads" in count_sentence(scan, {})  # not told: all count


def test_reasons_of_certificates_come_back_in_words(report_data, model_folder):
    model = report_data.to_json()["models"][0]
    scan = orbitlens.scan(model_folder("llama-grouped"))
    for layer, known in zip(model["scan"]["layers"], scan.layers, strict=True):
        for head, other in zip(layer["heads"], known.heads, strict=True):
            reasons = [
                "; ".join(model["clauses"][k] for k in certificate["why"])
                for certificate in head["certificates"]
            ]
            assert reasons == [certificate.why for certificate in other.certificates]


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
    said = done.stderr.splitlines()  # no bars where nobody looks: stages, and what came out
    assert all(line.endswith(" ...") or ": " in line for line in said)
    assert any("trace: " in line for line in said)
    text = Texts(page.read_text(encoding="utf-8")).text
    for section in SECTIONS:
        is_asked = section.body is not None and section.key != "cuts"  # that one by --cut
        assert not is_asked or section.title in text
    models = {model["name"]: model for model in json.loads(data.read_text())["models"]}
    assert set(models) == set(REAL)
    for model in models.values():
        assert all(model[part] is not None for part in ("scan", "trace", "audit", "orbits"))
        assert len(model["words"]) >= 5
        assert set(model["missing"]) <= {"shuffled", "reach"}  # no rotary decoders among them
        assert all(model["missing"].values())
    assert "No shuffled control: patches of images" in text
    assert "8 heads (shared by 12 layers)" in text
