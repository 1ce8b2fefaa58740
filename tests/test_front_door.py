"""The verbs on whatever a model is given as: what Python returns is what the commands write."""

import json

import pytest
import torch

import orbitlens as ol
from small_llama import refused, run
from tiny_live import tiny_filler, tiny_llama, write_small_gguf

IDS = [[5, 17, 3, 8, 11, 2, 30, 21], [9, 4, 30, 21, 7, 6, 12, 13]]
WORDS = "5,17,3,8,11,2,30,21"
SCAN = ol.ScanOptions(context=16)
TRACE = ol.TraceOptions(max_tokens=64, batch=2)
AUDIT = ol.AuditOptions(samples=2, permutations=2, length=6, slices=False)
REPORT = ol.ReportOptions(max_tokens=32, context=8, samples=2, permutations=1, flows=1, controls=0)
GGUF_NOTE = "built from the GGUF file by transformers"


def a_step_of_training(module):
    """Leave a module as it is in the middle of a training loop: gradients, an optimizer, modes."""
    module.train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    module(torch.tensor(IDS), labels=torch.tensor(IDS)).loss.backward()
    optimizer.step()
    return module


@pytest.fixture(scope="module")
def given(tmp_path_factory):
    """Return a function from a kind of model to (what Python gets, what a command gets)."""
    home = tmp_path_factory.mktemp("models")

    def saved(module, name):
        module.save_pretrained(home / name)
        return home / name

    def get(kind):
        if kind == "zoo":
            return "orbit-nano-rotary", "orbit-nano-rotary"
        if kind == "gguf":
            path = write_small_gguf(home / "small.gguf")
            return path, path
        module = tiny_llama() if kind != "training" else a_step_of_training(tiny_llama())
        folder = saved(module, kind)
        return (folder if kind == "folder" else module), folder

    return get


@pytest.fixture
def ids_file(tmp_path):
    file = tmp_path / "ids.txt"
    file.write_text("\n".join(" ".join(map(str, row)) for row in IDS))
    return file


def alike(data):
    """Return a result without what differs between two runs, or two places of one model."""
    if isinstance(data, list):
        return [alike(item) for item in data]
    if not isinstance(data, dict):
        return data
    passing = {
        "cost",
        "seconds",
        "model",
        "name",
        "versions",
        "flags",
        "text",
        "tokens",
        "settings",
    }
    return {key: alike(value) for key, value in data.items() if key not in passing}


def written(result, tmp_path):
    result.save(tmp_path / "result.json")
    return json.loads((tmp_path / "result.json").read_text())


def by_command(tmp_path, *arguments):
    file = tmp_path / "command.json"
    outcome = run(*arguments, "--json", file)
    assert outcome.code == 0, outcome.err
    return json.loads(file.read_text()), " ".join(outcome.out.split())


KINDS = ["zoo", "folder", "gguf", "live", "training"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_scan_is_that_of_the_command(kind, given, tmp_path):
    mine, named = given(kind)
    theirs, _ = by_command(tmp_path, "scan", named, "--context", 16)
    assert alike(written(ol.scan(mine, SCAN), tmp_path)) == alike(theirs)
    assert len(theirs["layers"]) >= 2


@pytest.mark.parametrize("kind", ["zoo", "training"])
def test_a_scan_on_text_is_that_of_the_command(kind, given, ids_file, tmp_path):
    mine, named = given(kind)
    theirs, _ = by_command(tmp_path, "scan", named, "--tokens", ids_file)
    ours = written(ol.scan(mine, text=IDS), tmp_path)
    assert alike(ours) == alike(theirs)
    assert ours["text"] == theirs["text"]
    assert theirs["layers"][0]["heads"][0]["on_text"]["log_change"] != 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_trace_is_that_of_the_command(kind, given, ids_file, tmp_path):
    mine, named = given(kind)
    options = ("--tokens", ids_file, "--max-tokens", 64, "--batch", 2)
    theirs, printed = by_command(tmp_path, "trace", named, *options)
    result = ol.trace(mine, IDS, options=TRACE)
    assert alike(written(result, tmp_path)) == alike(theirs)
    assert any(GGUF_NOTE in flag for flag in result.flags) == (kind == "gguf")
    assert (GGUF_NOTE in printed) == (kind == "gguf")


@pytest.mark.parametrize("kind", KINDS)
def test_an_audit_is_that_of_the_command(kind, given, ids_file, tmp_path):
    mine, named = given(kind)
    options = ("--samples", 2, "--permutations", 2, "--length", 6, "--no-slices")
    theirs, printed = by_command(tmp_path, "audit", named, "--tokens", ids_file, *options)
    result = ol.audit(mine, IDS, options=AUDIT)
    assert alike(written(result, tmp_path)) == alike(theirs)
    assert (GGUF_NOTE in printed) == (kind == "gguf")


@pytest.mark.parametrize("kind", ["zoo", "gguf", "training"])
def test_positions_are_those_of_the_command(kind, given, ids_file, tmp_path):
    mine, named = given(kind)
    theirs, printed = by_command(tmp_path, "positions", named, "--tokens", ids_file)
    result = ol.positions(mine, IDS)
    assert alike(written(result, tmp_path)) == alike(theirs)
    assert len(result.trials) > 3
    assert (GGUF_NOTE in printed) == (kind == "gguf")


@pytest.mark.parametrize("kind", ["zoo", "gguf", "training"])
def test_a_report_is_that_of_the_command(kind, given, ids_file, tmp_path):
    mine, named = given(kind)
    options = ("--max-tokens", 32, "--context", 8, "--samples", 2, "--permutations", 1)
    options += ("--flows", 1, "--controls", 0, "--out", tmp_path / "r.html")
    theirs, printed = by_command(tmp_path, "report", named, "--tokens", ids_file, *options)
    result = ol.report(mine, tokens=IDS, options=REPORT)
    assert alike(json.loads(json.dumps(result.to_json()))) == alike(theirs)
    assert result.models[0].trace is not None
    assert (GGUF_NOTE in printed) == (kind == "gguf")


def test_an_explanation_is_that_of_the_command(tmp_path):
    folder = tmp_path / "encoder"
    tiny_filler().save_pretrained(folder)
    theirs, printed = by_command(tmp_path, "explain", folder, "--tokens", WORDS)
    result = ol.explain(folder, IDS[0])
    assert alike(written(result, tmp_path)) == alike(theirs)
    first = " ".join(result.summary().split())[:60]
    assert first in printed


# --- what is given ---------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["trace", "audit", "explain"])
def test_ids_may_have_commas_or_spaces_in_every_command(command, tmp_path):
    folder = tmp_path / "encoder"
    tiny_filler().save_pretrained(folder)
    small = ("--samples", 2, "--permutations", 2, "--no-slices") if command == "audit" else ()
    row = WORDS + ",1,2" if command == "audit" else WORDS
    ids = row + ("\n" + row[2:] + ",3" if command != "explain" else "")
    commas, _ = by_command(tmp_path, command, folder, "--tokens", ids, *small)
    spaces, _ = by_command(tmp_path, command, folder, "--tokens", ids.replace(",", " "), *small)
    assert alike(commas) == alike(spaces)


def test_a_list_of_ids_may_be_longer_than_the_name_of_a_file(model_folder):
    ids = "\n".join(",".join(str(3 + (k * j) % 30) for k in range(12)) for j in range(1, 30))
    assert len(ids) > 255
    assert run("trace", model_folder("llama"), "--tokens", ids).code == 0


def test_a_report_refuses_text_and_ids_together_and_a_text_that_is_missing(model_folder, tmp_path):
    file, out = tmp_path / "text.txt", ("--out", tmp_path / "r.html")
    file.write_text("1 2 3 4 5")
    folder = model_folder("llama")
    refused("report", folder, "--text", file, "--tokens", WORDS, *out, says=["give one of them"])
    missing = ("--text", tmp_path / "none.txt")
    refused("report", folder, *missing, *out, says=["--text", "there is no such file"])


def test_a_gguf_file_that_transformers_cannot_build_is_scanned_and_not_run(tmp_path):
    from checkpoint.test_gguf import BY_NAME, to_gguf
    from checkpoint.test_gguf import build as build_for_gguf

    case = BY_NAME["phi2"]
    path = to_gguf(case, build_for_gguf(case), tmp_path / "phi2.gguf")
    assert run("scan", path).code == 0
    for command in ("trace", "audit"):
        refused(command, path, "--tokens", WORDS, says=["'phi2'", "scanned and not run"])


@pytest.mark.parametrize("command", ["trace", "audit", "report", "explain"])
def test_pickled_weights_are_read_with_leave(command, tmp_path):
    module = tiny_filler()
    module.config.architectures = [type(module).__name__]
    module.config.save_pretrained(tmp_path)
    torch.save(module.state_dict(), tmp_path / "pytorch_model.bin")
    options = ["--tokens", WORDS if command == "explain" else f"{WORDS}\n{WORDS[2:]},9"]
    if command == "report":
        options += ["--samples", 2, "--permutations", 1, "--flows", 0, "--controls", 0]
        options += ["--out", tmp_path / "r.html"]
    if command == "audit":
        options += ["--samples", 2, "--permutations", 1, "--no-slices"]
    refused(command, tmp_path, *options, says=["pickle"])
    assert run(command, tmp_path, *options, "--allow-pickle").code == 0


def test_a_bug_in_reading_a_config_is_not_blamed_on_the_config(model_folder, monkeypatch):
    def broken(*arguments):
        raise TypeError("a bug")

    monkeypatch.setattr("orbitlens.checkpoint.build._build", broken)
    with pytest.raises(TypeError, match="a bug"):
        ol.load(model_folder("llama"))
