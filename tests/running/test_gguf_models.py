"""Which GGUF files can be run, and where hooks go in a model that was read from one."""

import gguf
import numpy as np
import pytest
import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.families.registry import GGUF_ARCHITECTURES
from orbitlens.running.capture import capturing, layer_modules
from orbitlens.running.gguf_models import runnable_gguf, why_not_runnable
from tiny_models import CASES, build, inputs_for

BY_NAME = {case.name: case for case in CASES}
ARCHITECTURE_OF = {"llama": "llama", "qwen3": "qwen3", "gemma2": "gemma2", "lfm2": "lfm2"}
ARCHITECTURE_OF |= {"phi": "phi2", "t5": "t5"}


def written(name, path):
    """Write a tiny model's tensors under GGUF's names; values are not looked at here."""
    case = BY_NAME[name]
    model = build(case).float()
    config = model.config
    architecture = ARCHITECTURE_OF[name]
    number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    kv_heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    sizes = {
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": kv_heads,
    }
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    if width:
        sizes |= {"attention.key_length": width, "attention.value_length": width}
    if name == "t5":
        sizes["decoder_block_count"] = config.num_decoder_layers
    for key, value in sizes.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    for hf_name, value in model.state_dict().items():
        stored = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if stored is not None:
            writer.add_tensor(stored, np.ascontiguousarray(value.numpy()))
    if name == "lfm2":
        writer.kv_data[0].pop(f"{architecture}.attention.head_count_kv")
        kinds = [kv_heads * (kind == "full_attention") for kind in config.layer_types]
        writer.add_array(f"{architecture}.attention.head_count_kv", kinds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model, load_checkpoint(path)


@pytest.mark.parametrize("name", ARCHITECTURE_OF)
def test_hooks_of_a_gguf_checkpoint_are_those_of_the_model_in_hugging_face_layout(name, tmp_path):
    model, stored = written(name, tmp_path / "model.gguf")
    model.save_pretrained(tmp_path / "hf")
    plain = load_checkpoint(tmp_path / "hf")
    for one, two in zip(stored.architecture.stacks, plain.architecture.stacks, strict=True):
        assert layer_modules(model, stored, one) == layer_modules(model, plain, two)
    seen = []
    with torch.no_grad(), capturing(model, stored, lambda *states: seen.append(states[:2])):
        model(**inputs_for(BY_NAME[name], model))
    assert len(seen) == sum(stack.n_layers for stack in stored.architecture.stacks)


def test_architectures_that_transformers_builds_are_a_part_of_those_that_are_read():
    runnable = runnable_gguf()
    assert {"llama", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "t5", "lfm2"} <= runnable
    assert runnable < set(GGUF_ARCHITECTURES)
    assert not runnable & {"general", "tokenizer", "phi2"}


def test_a_file_that_cannot_be_run_says_why(tmp_path, model_folder):
    _, runs = written("llama", tmp_path / "a.gguf")
    _, does_not = written("phi", tmp_path / "b.gguf")
    assert why_not_runnable(runs) is None
    assert why_not_runnable(load_checkpoint(model_folder("gpt2"))) is None
    assert "'phi2'" in why_not_runnable(does_not)
    assert "scanned and not run" in why_not_runnable(does_not)
