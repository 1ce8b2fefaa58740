"""`orbitlens trace`: what it prints, what it writes, and what it refuses with exit code 2."""

import io
import json
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from orbitlens.cli.app import app
from orbitlens.errors import InputError
from orbitlens.terminal.trace import mechanisms_view
from orbitlens.tracing.mechanism_result import HeadMechanisms, HeadScores, Mechanisms, findings

IDS = " ".join(str(3 + k % 30) for k in range(12))


@pytest.fixture
def ids_file(tmp_path):
    file = tmp_path / "ids.txt"
    rows = torch.randint(3, 39, (8, 12), generator=torch.Generator().manual_seed(0))
    file.write_text("\n".join(" ".join(map(str, row)) for row in rows.tolist()))
    return str(file)


def run(*arguments):
    return CliRunner().invoke(app, ["trace", *arguments], catch_exceptions=True)


def test_a_report_fits_80_columns_and_says_what_attention_does(model_folder, ids_file):
    result = run(model_folder("llama-grouped"), "--tokens", ids_file)
    assert result.exit_code == 0, result.output
    assert "attention" in result.output.lower()
    assert "over depth" in result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_json_and_save_hold_what_the_docs_promise(model_folder, ids_file, tmp_path):
    json_file, folder = tmp_path / "t.json", tmp_path / "saved"
    model = model_folder("llama-grouped")
    result = run(model, "--tokens", ids_file, "--json", str(json_file), "--save", str(folder))
    assert result.exit_code == 0, result.output
    data = json.loads(json_file.read_text())
    assert {"layers", "agreement", "self_check", "cost"} <= set(data)
    assert data["mechanisms"] is None  # was not asked for
    assert {"pearson", "spearman", "sign", "per_closure"} <= set(data["agreement"])
    layer = data["layers"][0]
    wanted = {"measured_log_change", "predicted_log_change", "simulated_log_change"}
    assert wanted <= set(layer["attention"])
    assert {"head", "measured", "predicted"} <= set(layer["heads"][0])
    check = {"max_logit_difference", "dtype", "mask", "seeds", "versions"}
    assert check <= set(data["self_check"])
    assert json.loads((folder / "trace.json").read_text())["layers"] == data["layers"]
    scan = CliRunner().invoke(
        app, ["scan", model, "--covariance", str(folder / "covariances.safetensors")]
    )
    assert scan.exit_code == 0, scan.output
    assert "with data" in scan.output


def test_controls_shuffled_tokens_and_an_untrained_twin(model_folder, ids_file, tmp_path):
    file = tmp_path / "t.json"
    model = model_folder("llama-grouped")
    result = run(model, "--tokens", ids_file, "--twin", "--shuffle", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert "untrained twin" in result.output
    data = json.loads(file.read_text())
    assert len(data["twin"]["layers"]) == len(data["layers"])
    plain = tmp_path / "p.json"
    run(model, "--tokens", ids_file, "--json", str(plain))
    now = json.loads(plain.read_text())["layers"][0]["attention"]["measured_log_change"]
    assert now != data["layers"][0]["attention"]["measured_log_change"]
    assert now != data["twin"]["layers"][0]["attention"]["measured_log_change"]


def test_mechanisms_are_told_in_words_a_table_and_json(model_folder, ids_file, tmp_path):
    file = tmp_path / "t.json"
    model = model_folder("llama-grouped")
    result = run(model, "--tokens", ids_file, "--mechanisms", "--json", str(file))
    assert result.exit_code == 0, result.output
    assert all(len(line) <= 80 for line in result.output.splitlines())
    assert "induction" in result.output
    assert "the untrained twin's best" in " ".join(result.output.split())
    assert "2.3" in result.output  # the last head has its row
    data = json.loads(file.read_text())
    assert data["twin"] is None  # --twin was not asked for
    heads = data["mechanisms"]["heads"]
    assert [(head["layer"], head["head"]) for head in heads] == [
        (layer, head) for layer in range(3) for head in range(4)
    ]
    scores = {"induction", "previous", "saturation", "margin", "margin_share"}
    assert all(isinstance(head[score], float) for head in heads for score in scores)
    assert all(isinstance(head["twin"][score], float) for head in heads for score in scores)
    assert {x["score"] for x in data["mechanisms"]["findings"]} == scores - {"margin_share"}


def test_mechanisms_of_an_encoder_say_why_there_is_no_induction(model_folder, ids_file):
    result = run(model_folder("bert"), "--tokens", ids_file, "--mechanisms")
    assert result.exit_code == 0, result.output
    words = " ".join(result.output.split())
    assert "Induction was not measured: no causal mask" in words
    assert "of 12 heads are more saturated" in words
    assert all(len(line) <= 80 for line in result.output.splitlines())


def test_a_large_model_shows_its_leading_heads_only():
    heads = []
    for layer in range(10):
        for number in range(10):
            value = (layer * 10 + number) / 1000
            scores = HeadScores(
                induction=value,
                induction_error=0.0,
                repeated=value,
                reordered=0.0,
                previous=-value,
                saturation=value,
                margin=value,
                margin_share=value,
            )
            place = {"stack": "decoder", "layer": layer, "head": number}
            heads.append(HeadMechanisms(**vars(scores), **place, twin=scores))
    found = Mechanisms(
        heads=tuple(heads),
        findings=findings(heads),
        repetition=None,
        reasons={},
        n_contexts=1,
        max_attention_error=0.0,
    )
    console = Console(width=80, record=True, file=io.StringIO())
    for part in mechanisms_view(found):
        console.print(part)
    shown = console.export_text()
    assert "16 of 100 heads: the best 8 of each score" in shown
    assert "9.9" in shown
    assert "0.0 " in shown  # leads in the second score, from the other end
    assert "5.5" not in shown


REFUSED = [
    ("llama", ["--tokens", "1,2,99,4"], "99 is out of range"),
    ("llama", ["--tokens", "1,2,3"], "at least 4"),
    ("llama", ["--tokens", " ".join(["3"] * 80)], "80 tokens and the model 64 positions"),
    ("llama", ["--tokens", "1,x"], "no token id"),
    ("llama", ["--tokens", IDS, "--batch", "0"], "at least 1"),
    ("llama", ["--tokens", IDS, "--context", "100"], "100 tokens was asked for; this model has 64"),
    ("llama", ["--tokens", IDS, "--text", "a.txt"], "give one of them"),
    ("llama", ["--text", "missing.txt"], "--text missing.txt: there is no such file"),
    ("llama", ["--images", __file__], "reads text"),
    ("vit", ["--text", __file__], "neither a .npy file nor a file of images"),
    ("vit", ["--tokens", "1,2,3,4"], "expected images"),
    ("vit", ["--images", "missing.npy"], "--images missing.npy: there is no such file"),
    ("vit", ["--images", __file__, "--normalise", "1"], "two numbers"),
    ("whisper", [], "input_features"),
]


@pytest.mark.parametrize(("name", "arguments", "said"), REFUSED)
def test_bad_input_is_refused_with_advice(model_folder, name, arguments, said):
    result = run(model_folder(name), *arguments)
    assert isinstance(result.exception, InputError)
    assert said in str(result.exception)


def test_without_text_and_tokenizer_a_model_is_run_on_random_tokens_and_says_so(model_folder):
    result = run(model_folder("llama"), "--max-tokens", "256")
    assert result.exit_code == 0, result.output
    assert "inputs are random tokens" in " ".join(result.output.split())


def test_the_command_ends_with_code_2_and_no_traceback(model_folder):
    command = [sys.executable, "-m", "orbitlens.cli", "trace", model_folder("llama")]
    done = subprocess.run(
        [*command, "--tokens", "1,2,99,4"],
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("orbitlens: token id 99")  # behind a stage


def test_a_short_text_and_a_wrong_encoding_are_refused(shared_model, tmp_path):
    model = str(shared_model("stories260K-llama-hf"))
    short = tmp_path / "short.txt"
    short.write_text("Once")
    result = run(model, "--text", str(short))
    assert "too short" in str(result.exception)
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Größe ".encode("latin-1") * 50)
    assert "not UTF-8" in str(run(model, "--text", str(latin)).exception)


def test_the_packages_own_passage_is_the_default_text(shared_model):
    result = run(str(shared_model("stories260K-llama-hf")), "--max-tokens", "600")
    assert result.exit_code == 0, result.output
    assert "spreads raw distances in every layer" in result.output


def test_images_of_the_wrong_size_are_refused(model_folder, tmp_path):
    import numpy as np

    np.save(tmp_path / "a.npy", np.zeros((4, 1, 9, 9)))
    result = run(model_folder("vit"), "--images", str(tmp_path / "a.npy"))
    assert "takes [1, 12, 12]" in str(result.exception)
    np.save(tmp_path / "b.npy", np.random.default_rng(0).normal(size=(4, 1, 12, 12)))
    assert run(model_folder("vit"), "--images", str(tmp_path / "b.npy")).exit_code == 0
