"""Scan, trace and audit read the lab's models as they read any other: refined ones too."""

import json
import sys

import pytest
import torch

import orbitlens.orbit
from orbit_models import tiny, token_ids
from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError
from orbitlens.heads.attention import attention_output, attention_pattern
from orbitlens.heads.layers import load_layer, position_table
from orbitlens.running.loading import build_module, fresh_module
from orbitlens.scanning.api import scan
from small_llama import refused, run

SWITCHES = {
    "none": {"position": "none"},
    "learned with biases": {"position": "learned", "bias": True},
    "sinusoidal": {"position": "sinusoidal"},
    "rotary": {"position": "rotary"},
    "partial rotary": {"position": "rotary", "rotary_fraction": 0.67},
    "rotary in some layers": {"position": "rotary", "rotary_layers": [1]},
    "alibi": {"position": "alibi"},
    "alibi, full": {"position": "alibi", "mask": "full"},
    "t5": {"position": "t5"},
    "t5, full": {"position": "t5", "mask": "full"},
    "post": {"norm": "post"},
    "peri": {"norm": "peri", "bias": True},
    "no norm, rotary": {"norm": "none", "position": "rotary"},
    "qk-norm": {"qk_norm": True, "position": "learned", "bias": True},
    "qk-norm, rotary": {"qk_norm": True, "position": "rotary", "norm": "post"},
    "rms": {"norm_kind": "rms"},
    "shared": {"shared_layers": True},
    "no mlp, no residual": {"mlp": False, "residual": "none"},
    "guard": {"refinement": "guard"},
    "plastic": {"attention": "plastic"},
    "plastic, rotary, fading": {"attention": "plastic", "position": "rotary", "decay": 0.8},
    "plastic, full": {"attention": "plastic", "mask": "full", "position": "none"},
    "reinjection": {"refinement": "reinjection"},
    "aligned": {"refinement": "aligned", "bias": True},
    "definite-positive": {"refinement": "definite-positive"},
    "definite-half, rotary": {"refinement": "definite-half", "position": "rotary"},
    "definite-negative, post": {"refinement": "definite-negative", "norm": "post"},
    "released-half": {"refinement": "released-half", "norm": "post"},
    "released-negative, rotary": {"refinement": "released-negative", "position": "rotary"},
    "theorem-positive": {"refinement": "theorem-positive"},
    "theorem-half, post": {"refinement": "theorem-half", "norm": "post"},
}
REFUSED = {
    "diagonal": {"refinement": "diagonal", "position": "rotary"},
    "rotary-values": {"refinement": "rotary-values", "position": "rotary"},
    "centred": {"refinement": "centred"},
    "averaging": {"refinement": "averaging"},
    "aligned, rotary": {"refinement": "aligned", "position": "rotary"},
}


def observed(model):
    """Return what entered each layer's block and what its output map wrote."""
    seen = []
    hooks = []
    for block in model.model.layers:
        hooks.append(block.register_forward_pre_hook(lambda m, args: seen.append([args[0]])))
        output = getattr(block.self_attn, "o_proj", None) or block.self_attn.value_map
        hooks.append(output.register_forward_hook(lambda m, args, out: seen[-1].append(out)))
    with torch.no_grad():
        patterns = model(token_ids(batch=1), output_attentions=True).attentions
    for hook in hooks:
        hook.remove()
    return [(x[0], out[0], p[0]) for (x, out), p in zip(seen, patterns, strict=True)]


@pytest.mark.parametrize("name", SWITCHES)
def test_heads_recompute_what_the_model_did(tmp_path, name):
    model = tiny(**SWITCHES[name])
    model.save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    for number, (x, expected, pattern) in enumerate(observed(model)):
        layer = load_layer(checkpoint, number)
        seen = layer.normalise(x)
        torch.testing.assert_close(attention_pattern(layer, seen), pattern, rtol=0, atol=1e-9)
        torch.testing.assert_close(attention_output(layer, seen), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", REFUSED)
def test_maps_that_are_not_one_map_are_refused(tmp_path, name):
    tiny(**REFUSED[name]).save_pretrained(tmp_path)
    checkpoint = load_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="Its heads cannot be read"):
        load_layer(checkpoint, 0)
    refused("scan", tmp_path, says=["refinement", "Its heads cannot be read"])


def test_a_scan_of_a_refined_model_is_not_that_of_its_raw_weights(tmp_path):
    model = tiny(refinement="aligned", position="none", norm="none")
    model.save_pretrained(tmp_path / "aligned")
    config = json.loads((tmp_path / "aligned" / "config.json").read_text())
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "config.json").write_text(json.dumps({**config, "refinement": "none"}))
    (raw / "model.safetensors").write_bytes((tmp_path / "aligned/model.safetensors").read_bytes())

    def alignment_of(folder):
        return scan(load_checkpoint(folder)).layers[0].heads[0].alignment

    head = load_layer(load_checkpoint(tmp_path / "aligned"), 0).head(0)
    left, right = head.score_factors
    w_v, w_o = head.value_factors
    score, value = left @ right.T, (w_v @ w_o).T
    expected = ((score * value).sum() / score.norm() / value.norm()).item()
    assert alignment_of(tmp_path / "aligned") == pytest.approx(expected)
    assert alignment_of(raw) != pytest.approx(expected, rel=1e-3)


def test_a_definite_negative_layer_reads_as_opposed_and_a_positive_one_as_aligned(tmp_path):
    indices = {}
    for sign in ("positive", "negative"):
        folder = tmp_path / sign
        model = tiny(refinement=f"definite-{sign}", position="none", norm="none")
        for parameter in model.model.layers.parameters():
            parameter.data.mul_(0.1)  # near the symmetric case, in which the sign is proved
        model.save_pretrained(folder)
        heads = scan(load_checkpoint(folder)).layers[0].heads
        indices[sign] = [head.expansion_index for head in heads]
    assert min(indices["positive"]) > 0.5
    assert max(indices["negative"]) < -0.5


def test_the_table_of_positions_is_found(tmp_path):
    for position in ("learned", "sinusoidal"):
        model = tiny(position=position)
        model.save_pretrained(tmp_path / position)
        table = position_table(load_checkpoint(tmp_path / position))
        assert torch.equal(table, model.model.embed_positions.weight)


def test_a_model_is_loaded_where_nothing_has_imported_its_classes(tmp_path, monkeypatch):
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    tiny().save_pretrained(tmp_path)
    monkeypatch.delitem(CONFIG_MAPPING._extra_content, "orbit")
    # Importing again sets the attribute of the parent package too: both are put back.
    monkeypatch.setattr(orbitlens.orbit, "auto", sys.modules["orbitlens.orbit.auto"])
    monkeypatch.delitem(sys.modules, "orbitlens.orbit.auto")
    for task in ("declared", "base", "causal-lm"):
        model = build_module(tmp_path, task=task)
        assert type(model).__name__ == ("OrbitModel" if task == "base" else "OrbitForCausalLM")


def test_a_fresh_twin_has_the_same_shapes_and_other_weights(tmp_path):
    tiny().save_pretrained(tmp_path)
    model = build_module(tmp_path)
    twin = fresh_module(tmp_path, seed=3)
    for (name, mine), (same, other) in zip(
        model.named_parameters(), twin.named_parameters(), strict=True
    ):
        assert name == same and mine.shape == other.shape
    assert not torch.equal(model.lm_head.weight, twin.lm_head.weight)


def run_json(tmp_path, *words):
    file = tmp_path / "out.json"
    outcome = run(*words, "--json", file)
    assert outcome.code == 0, outcome.err
    return json.loads(file.read_text())


@pytest.mark.parametrize(
    "switches",
    [
        {"position": "rotary", "norm": "none", "mlp": False},
        {"position": "learned", "norm": "post", "mask": "full"},
        {"position": "t5", "norm": "peri", "shared_layers": True},
        {"position": "learned", "refinement": "definite-negative"},
        {"position": "none", "refinement": "aligned"},
    ],
    ids=lambda s: "-".join(map(str, s.values())),
)
def test_trace_follows_a_lab_model_exactly(tmp_path, switches):
    tiny(**switches).float().save_pretrained(tmp_path / "m")
    ids = tmp_path / "ids.txt"
    ids.write_text("\n".join(" ".join(map(str, row)) for row in token_ids(20, batch=6).tolist()))
    found = run_json(tmp_path, "trace", str(tmp_path / "m"), "--tokens", str(ids))
    assert found["self_check"]["max_logit_difference"] == 0
    assert found["self_check"]["max_head_sum_error"] < 1e-5
    assert len(found["layers"]) == 3


@pytest.mark.parametrize(
    ("position", "mask"),
    [(position, "causal") for position in ("none", "learned", "rotary", "alibi", "t5")]
    + [("none", "full"), ("alibi", "full")],
)
def test_audit_switches_encoding_and_mask_off(tmp_path, position, mask):
    tiny(position=position, mask=mask, num_hidden_layers=2).float().save_pretrained(tmp_path / "m")
    options = ["--samples", "6", "--permutations", "3", "--length", "9"]
    found = run_json(tmp_path, "audit", str(tmp_path / "m"), *options)
    cells = {name: cell["mean_js_bits"] for name, cell in found["cells"].items() if cell}
    floor = 1e-6
    assert cells["nope_full"] < floor
    assert ("nope_causal" in cells) == (mask == "causal")  # there is no mask to remove otherwise
    assert mask == "full" or cells["nope_causal"] > 1e-3
    assert (cells["pe_full"] > 1e-3) == (position != "none")
    assert (cells["pe_causal" if mask == "causal" else "pe_full"] < floor) == (
        position == "none" and mask == "full"
    )


@pytest.mark.parametrize("name", ["diagonal", "aligned, rotary"])
def test_audit_takes_models_whose_heads_cannot_be_read(tmp_path, name):
    tiny(**REFUSED[name], num_hidden_layers=2).float().save_pretrained(tmp_path / "m")
    options = ["--samples", "4", "--permutations", "3", "--length", "9"]
    cells = run_json(tmp_path, "audit", str(tmp_path / "m"), *options)["cells"]
    assert cells["nope_full"]["mean_js_bits"] < 1e-6 < cells["pe_full"]["mean_js_bits"]


def test_audit_and_scan_take_a_model_of_images(tmp_path):
    tiny(image_size=8, patch_size=2, num_labels=5, mask="full").float().save_pretrained(
        tmp_path / "m"
    )
    options = ["--samples", "4", "--permutations", "3"]
    cells = run_json(tmp_path, "audit", str(tmp_path / "m"), *options)["cells"]
    assert cells["nope_full"]["mean_js_bits"] < 1e-6 < cells["pe_full"]["mean_js_bits"]
    assert len(run_json(tmp_path, "scan", str(tmp_path / "m"))["layers"]) == 3
