"""The demo: what was planted in its heads is what a scan finds, and nothing where nothing was."""

import json

import pytest
import torch
from scipy.stats import spearmanr

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.cli import demo_model as demo
from orbitlens.reporting.report import Report
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from orbitlens.scanning.scan_result import Orientation
from small_llama import refused, run


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    return scan(load_checkpoint(demo.write_demo_model(tmp_path_factory.mktemp("planted"))))


@pytest.fixture(scope="module")
def control(tmp_path_factory):
    """The same model with nothing planted."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "planted_alignment", lambda layer, head: 0.0)
        folder = demo.write_demo_model(tmp_path_factory.mktemp("control"))
    return scan(load_checkpoint(folder))


def rank_correlation(result):
    planted = [demo.planted_alignment(la.layer, h.head) for la, h in result.heads()]
    return spearmanr(planted, [head.expansion_index for _, head in result.heads()]).statistic


def test_planted_alignments_are_recovered_in_order(planted):
    assert rank_correlation(planted) > 0.9


def test_strongly_turned_heads_are_named_and_none_is_named_wrongly(planted):
    for layer, head in planted.heads():
        turned = demo.planted_alignment(layer.layer, head.head)
        wrong = Orientation.OPPOSED if turned > 0 else Orientation.ALIGNED
        assert head.orientation is not wrong
        if abs(turned) > 0.6:
            assert head.orientation is not Orientation.NEUTRAL


def test_a_control_without_planting_is_mostly_neutral(control):
    orientations = [head.orientation for _, head in control.heads()]
    assert orientations.count(Orientation.NEUTRAL) >= 0.9 * len(orientations)
    assert abs(rank_correlation(control)) < 0.5


def test_every_seed_makes_another_model_and_the_same_one_twice(tmp_path):
    files = [
        demo.write_demo_model(tmp_path / name, seed=seed) / "model.safetensors"
        for name, seed in [("a", 1), ("b", 1), ("c", 2)]
    ]
    first, again, other = (file.read_bytes() for file in files)
    assert first == again
    assert first != other


def test_the_command_writes_a_model_and_its_scan_and_says_where(tmp_path):
    out = tmp_path / "out"
    outcome = run("demo", "--no-report", "--out", out)
    assert outcome.code == 0
    assert outcome.err.startswith("This model was made on the spot")
    assert str(out / "demo-scan.json") in outcome.out
    assert "orbitlens scan" in outcome.out
    written = json.loads((out / "demo-scan.json").read_text())
    options = ScanOptions(context=256)
    expected = scan(load_checkpoint(out / "demo-model"), options).to_json()
    assert written["layers"] == json.loads(json.dumps(expected["layers"]))
    assert run("demo", "--no-report", "--out", out).code == 0  # a second run writes over the first


def test_the_demo_reports_on_the_zoo_and_says_where_the_page_is(
    tmp_path, model_folder, monkeypatch
):
    names = [f"orbit-nano-{position}" for position in ("alibi", "rotary")]
    monkeypatch.setattr(demo, "zoo_names", lambda: names)
    assert demo.demo_models(tmp_path) == names
    monkeypatch.setattr(demo, "zoo_names", list)
    assert demo.demo_models(tmp_path) == [str(tmp_path)]  # an installation without a zoo
    monkeypatch.setattr(demo, "demo_models", lambda made: [model_folder("gpt2")])
    outcome = run("demo", "--out", tmp_path)
    assert outcome.code == 0
    page = tmp_path / "report.html"
    assert str(page) in outcome.out.replace("\n", "")
    assert Report.load(page).models[0].trace is not None


def test_a_place_that_cannot_be_written_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    outcome = run("demo", "--out", tmp_path / "file" / "out")
    assert (outcome.code, outcome.out) == (2, "")
    assert "cannot be written" in outcome.err
    assert "--out" in outcome.err


def test_planted_alignments_run_from_opposed_to_aligned():
    first = demo.planted_alignment(0, 0)
    last = demo.planted_alignment(demo.N_LAYERS - 1, demo.N_HEADS - 1)
    assert -0.9 < first < -0.6
    assert last == pytest.approx(-first)


def test_weights_of_the_demo_have_the_size_of_noise(tmp_path):
    checkpoint = load_checkpoint(demo.write_demo_model(tmp_path))
    for name in checkpoint.stack().tensors[0].values():
        value = checkpoint.read(name)
        assert torch.isfinite(value).all()
        assert value.dtype == torch.float32
    assert refused("scan", tmp_path, "--layers", "6", says=["layers 0 to 5"])
