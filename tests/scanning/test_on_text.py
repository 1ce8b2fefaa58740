"""A scan with a text: the numbers of a trace, beside those of the weights."""

import json

import pytest
import torch

import orbitlens as ol
from orbitlens.errors import InputError
from orbitlens.scanning.on_text import covariances_by_place
from small_llama import refused, run
from tiny_live import tiny_llama

generator = torch.Generator().manual_seed(0)
IDS = torch.randint(3, 30, (4, 12), generator=generator).tolist()
TEXT = "\n".join(",".join(map(str, row)) for row in IDS)


@pytest.fixture(scope="module")
def module():
    return tiny_llama()


@pytest.fixture(scope="module")
def both(module):
    return ol.scan(module, text=IDS), ol.trace(module, IDS)


def test_what_heads_do_is_what_a_trace_measures(both):
    found, traced = both
    rows = traced.to_pandas().set_index(["layer", "part"])
    heads = found.to_pandas()
    for name in ("log_change", "predicted", "raw_log_change"):
        expected = [rows.loc[(r.layer, f"head {r.head}"), name] for r in heads.itertuples()]
        assert heads[name].tolist() == expected
        assert len(set(expected)) == len(expected)
    for layer in found.layers:
        row = rows.loc[(layer.layer, "attention")]
        assert layer.on_text.log_change == row["log_change"]
        assert layer.on_text.raw_log_change == row["raw_log_change"]
    assert (found.text.n_tokens, found.text.n_contexts) == (traced.n_tokens, traced.n_contexts)


def test_a_text_makes_readings_data_aware_and_leaves_those_of_the_weights(both, module):
    found, weights = both[0], ol.scan(module)
    assert weights.text is None
    for (_, head), (_, plain) in zip(found.heads(), weights.heads(), strict=True):
        assert head.expansion_index == plain.expansion_index
        assert head.orientation is plain.orientation
        assert head.data_aware.expansion_index != head.expansion_index
        assert plain.data_aware is None and plain.on_text is None


def test_covariances_that_a_trace_saves_give_the_same_data_aware_reading(module, tmp_path):
    module.save_pretrained(tmp_path / "model")
    model = tmp_path / "model"
    assert run("trace", model, "--tokens", TEXT, "--save", tmp_path / "saved").code == 0
    file = tmp_path / "saved" / "covariances.safetensors"
    from_file = json.loads(run("scan", model, "--covariance", file, "--json", "-").out)
    on_text = json.loads(run("scan", model, "--tokens", TEXT, "--json", "-").out)
    for one, other in zip(from_file["layers"], on_text["layers"], strict=True):
        assert one["data_aware"]["expansion_index"] == pytest.approx(
            other["data_aware"]["expansion_index"], rel=1e-6
        )
        assert one["on_text"] is None


def test_only_the_layers_asked_for_are_shown(module):
    found = ol.scan(module, ol.ScanOptions(layers=[1]), text=IDS)
    assert [layer.layer for layer in found.layers] == [1]
    assert found.layers[0].on_text is not None


@pytest.mark.parametrize("name", ["t5", "bert", "albert"])
def test_encoders_shared_layers_and_two_stacks_are_read_on_text(name, model_folder):
    found = ol.scan(model_folder(name), text=IDS)
    assert all(head.on_text is not None for _, head in found.heads())
    assert "Measured on" in found.summary()


def test_a_scan_with_a_text_is_read_back_as_it_was(both, tmp_path):
    both[0].save(tmp_path / "scan.json")
    assert ol.Scan.load(tmp_path / "scan.json") == both[0]


def test_the_command_takes_a_text_and_shows_what_it_measured(module, tmp_path):
    module.save_pretrained(tmp_path / "model")
    outcome = run("scan", tmp_path / "model", "--tokens", TEXT)
    assert (outcome.code, outcome.err) == (0, "")
    assert max(map(len, outcome.out.splitlines())) <= 80
    for words in ("Measured on 48 tokens", "ΔS on text", "raw distances", "directions"):
        assert words in outcome.out
    assert "on text" in run("scan", tmp_path / "model", "--tokens", TEXT, "--head", "1.0").out


def test_a_text_that_is_missing_or_given_twice_is_refused(module, tmp_path):
    module.save_pretrained(tmp_path / "model")
    missing = ("--text", tmp_path / "none.txt")
    refused("scan", tmp_path / "model", *missing, says=["--text", "no such file"])
    refused("scan", tmp_path / "model", *missing, "--tokens", TEXT, says=["give one of them"])


def test_a_text_beside_covariances_is_refused(module):
    given = ol.ScanOptions(covariances={("decoder", 0): torch.eye(16)})
    with pytest.raises(InputError, match=r"covariances and a text.*Give one"):
        ol.scan(module, given, text=IDS)


def test_a_covariance_without_a_layer_in_its_name_is_refused():
    assert list(covariances_by_place({"decoder.3": torch.eye(2)})) == [("decoder", 3)]
    for name in ("decoder", "decoder.", "decoder.x", "decoder.²", "decoder." + "9" * 5000):
        with pytest.raises(InputError, match="which layer"):
            covariances_by_place({name: torch.eye(2)})
