"""Repaired copies: GGUF files of plain and quantised rows, and the split heads of MLA."""

import shutil

import gguf
import numpy as np
import pytest
import torch

import orbitlens as ol
from checkpoint.test_gguf import BY_NAME as GGUF_CASES
from checkpoint.test_gguf import common_metadata, converted, write_gguf
from orbitlens.encodings.api import AS_WEIGHTS_SAY
from orbitlens.encodings.options import PositionsOptions
from orbitlens.encodings.repair import write_repaired
from orbitlens.encodings.rows import row_orders
from orbitlens.errors import InputError
from orbitlens.families.architecture import Pairing
from orbitlens.running.loading import build_module

QUICK = PositionsOptions(max_tokens=512, bases=())


def stories_in_gguf(folder, path, *, permuted, quantised):
    """Write stories260K as llama.cpp's converter does, or as one that forgets to reorder rows."""
    case = GGUF_CASES["llama-grouped"]
    module = build_module(folder)
    values, kinds = {}, {}
    for hf_name, tensor in module.state_dict().items():
        for name, value in converted(case, module.config, hf_name, tensor):
            plain = tensor if not permuted and (".attn_q." in name or ".attn_k." in name) else value
            values[name] = np.ascontiguousarray(plain.numpy())
            if quantised and ".attn_" in name and plain.ndim == 2:
                kinds[name] = gguf.GGMLQuantizationType.Q8_0
                values[name] = gguf.quants.quantize(values[name], kinds[name])
    metadata = common_metadata(module.config) | {"rope.dimension_count": 8}
    return write_gguf(path, "llama", metadata, values, kinds)


def story_ids(folder):
    module = build_module(folder)
    torch.manual_seed(0)
    ids = torch.full((8, 1), 1)
    return module.generate(ids, max_new_tokens=63, do_sample=True, pad_token_id=0).tolist()


@pytest.mark.parametrize("quantised", [False, True])
def test_a_gguf_file_whose_rows_were_not_reordered_is_repaired_to_the_byte(
    quantised, shared_model, tmp_path
):
    folder = shared_model("stories260K-llama-hf")
    ids = story_ids(folder)
    sound, broken = (
        stories_in_gguf(folder, tmp_path / f"{name}.gguf", permuted=permuted, quantised=quantised)
        for name, permuted in (("sound", True), ("broken", False))
    )
    reference = ol.positions(sound, ids, options=QUICK)
    assert not list(reference.disagreeing())
    assert all(trial.is_worse for trial in reference.trials[1:])
    found = ol.positions(broken, ids, repair_to=tmp_path / "repaired", options=QUICK)
    assert found.repair.by_rows == (0, 1, 2, 3, 4)
    losses = {trial.name: trial.loss for trial in found.trials}
    assert losses[AS_WEIGHTS_SAY] == pytest.approx(reference.trials[0].loss, abs=1e-6)
    assert losses["as loaded"] > losses[AS_WEIGHTS_SAY] + 0.5
    assert losses["halves in all layers"] == losses[AS_WEIGHTS_SAY]
    assert (tmp_path / "repaired" / "broken.gguf").read_bytes() == sound.read_bytes()


def marked(module, pairing):
    """Give the rotated rows of latent attention energies that fall from plane to plane."""
    config = module.config
    width, plain = config.qk_rope_head_dim, config.qk_nope_head_dim
    place = torch.arange(width // 2)
    place = place.repeat(2) if pairing is Pairing.HALVES else place.repeat_interleave(2)
    gains = 1.5 * (1 - place / (width // 2)) + 0.2
    with torch.no_grad():
        for layer in module.model.layers:
            layer.self_attn.kv_a_proj_with_mqa.weight[config.kv_lora_rank :] *= gains[:, None]
            heads = layer.self_attn.q_b_proj.weight.unflatten(0, (-1, plain + width))
            heads[:, plain:] *= gains[:, None]
    return module


@pytest.fixture
def latent_folder(tmp_path):
    """Return MLA with heads of 16 rotated coordinates, that its config pairs as halves."""
    import transformers

    torch.manual_seed(0)
    config = transformers.DeepseekV3Config(
        vocab_size=40, hidden_size=64, intermediate_size=32, moe_intermediate_size=16,
        num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=24,
        kv_lora_rank=16, qk_rope_head_dim=16, qk_nope_head_dim=8, v_head_dim=8,
        first_k_dense_replace=2, max_position_embeddings=64, rope_interleave=False,
    )  # fmt: skip
    module = marked(transformers.DeepseekV3ForCausalLM(config).float(), Pairing.NEIGHBOURS)
    module.save_pretrained(tmp_path / "mla")
    return tmp_path / "mla"


def test_latent_attention_is_read_by_its_rotated_part_and_repaired_there(latent_folder, tmp_path):
    found = ol.positions(latent_folder)
    assert [str(layer.rotated) for layer in found.layers] == ["neighbours, 16"] * 2
    assert found.repair.by_rows == (0, 1)
    assert "q_pe and k_pe" in found.summary()
    assert any("16 of 24 coordinates" in flag for flag in found.flags)
    stack = ol.load(latent_folder).architecture.stacks[0]
    orders = row_orders(stack, 0, Pairing.NEIGHBOURS, 16) | row_orders(
        stack, 1, Pairing.NEIGHBOURS, 16
    )
    write_repaired(latent_folder, tmp_path / "repaired", orders)
    again = ol.positions(tmp_path / "repaired")
    assert [layer.agrees for layer in again.layers] == [True] * 2
    sound = marked_as_halves(latent_folder)
    repaired = build_module(tmp_path / "repaired").state_dict()
    assert all(torch.equal(value, repaired[name]) for name, value in sound.items())


def marked_as_halves(folder):
    """Return the weights with rows moved by hand, slice by slice."""
    state = {name: value.clone() for name, value in build_module(folder).state_dict().items()}
    for name, value in state.items():
        if "kv_a_proj_with_mqa" in name:
            state[name] = torch.cat([value[:16], value[16::2], value[17::2]])
        if "q_b_proj" in name:
            heads = value.view(4, 24, -1)
            parts = [heads[:, :8], heads[:, 8::2], heads[:, 9::2]]
            state[name] = torch.cat(parts, dim=1).flatten(0, 1)
    return state


def test_what_is_no_such_file_is_not_repaired(tmp_path):
    with pytest.raises(InputError, match="or a GGUF file, is repaired"):
        write_repaired(tmp_path, tmp_path / "a", {})
    (tmp_path / "model.gguf").write_bytes(b"no such file")
    with pytest.raises(InputError, match="convert it anew"):
        write_repaired(tmp_path / "model.gguf", tmp_path / "a", {})
    assert not (tmp_path / "a").exists()


def test_a_tensor_that_is_in_no_file_leaves_nothing_behind(model_folder, tmp_path):
    source = tmp_path / "model"
    shutil.copytree(model_folder("llama"), source)
    with pytest.raises(InputError, match="in none of its files"):
        write_repaired(source, tmp_path / "a", {"absent": torch.arange(2)})
    assert not (tmp_path / "a").exists()
