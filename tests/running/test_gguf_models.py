"""Which GGUF files can be run, and that they are."""

import gguf
import numpy as np
import pytest

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.errors import CheckpointError
from orbitlens.families.registry import GGUF_ARCHITECTURES
from orbitlens.order.api import audit
from orbitlens.running.gguf_models import runnable_gguf, why_not_runnable
from orbitlens.running.model import load
from orbitlens.scanning.api import scan
from orbitlens.tracing.api import trace
from tiny_models import CASES, build

BY_NAME = {case.name: case for case in CASES}
ARCHITECTURE_OF = {"llama": "llama", "phi": "phi2"}


def written(name, path):
    """Write a tiny model as a GGUF file, its tensors as they are under GGUF's names."""
    case = BY_NAME[name]
    model = build(case).float()
    config = model.config
    architecture = ARCHITECTURE_OF[name]
    number = next(k for k, v in gguf.MODEL_ARCH_NAMES.items() if v == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, architecture)
    sizes = {
        "block_count": config.num_hidden_layers,
        "context_length": 64,
        "feed_forward_length": config.intermediate_size,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
    }
    for key, value in sizes.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    for hf_name, value in model.state_dict().items():
        stored = names.get_name(hf_name, try_suffixes=(".weight", ".bias"))
        if stored is not None:
            writer.add_tensor(stored, np.ascontiguousarray(value.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return load_checkpoint(path)


def test_a_gguf_file_without_a_tokenizer_is_traced_and_audited_on_ids(tmp_path):
    written("llama", tmp_path / "model.gguf")
    model = load(tmp_path / "model.gguf")
    contexts = [[(7 * i + 5 * k) % 36 + 3 for i in range(11)] for k in range(4)]
    assert model.tokenizer is None
    assert len(scan(model).layers) == len(trace(model, contexts).layers) == 3
    own = audit(model, contexts).cells["pe_causal"]
    assert own is not None
    assert own.mean_js_bits > 0


def test_architectures_that_transformers_builds_are_a_part_of_those_that_are_read():
    runnable = runnable_gguf()
    assert {"llama", "qwen2", "qwen3", "gemma2", "phi3", "gpt2", "t5", "lfm2"} <= runnable
    assert runnable < set(GGUF_ARCHITECTURES)
    assert not runnable & {"general", "tokenizer", "phi2"}


def test_a_file_that_cannot_be_run_says_why(tmp_path, model_folder):
    runs = written("llama", tmp_path / "a.gguf")
    does_not = written("phi", tmp_path / "b.gguf")
    assert why_not_runnable(runs) is None
    assert why_not_runnable(load_checkpoint(model_folder("gpt2"))) is None
    assert "'phi2'" in why_not_runnable(does_not)
    with pytest.raises(CheckpointError, match="scanned and not run"):
        load(tmp_path / "b.gguf").module  # noqa: B018 - a property that builds
