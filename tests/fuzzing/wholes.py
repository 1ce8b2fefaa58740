"""What is damaged: small whole models, results and settings, each written once a process."""

import json
from functools import cache
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from tiny_models import CASES, build

FAMILIES = ["gpt2", "llama", "bert", "falcon-new", "deepseek_v2", "lfm2", "llama-linear", "olmo2"]
N_LAYERS, N_EMBEDDED, N_HEADS = 2, 16, 4


@cache
def families():
    """Return the names of the tiny models that there are."""
    known = {case.name: case for case in CASES}
    return (*(name for name in FAMILIES if name in known), "albert")


@cache
def model(name):
    """Return config and weights of a tiny model, as files hold them."""
    module = _albert() if name == "albert" else _case(name)
    folder = Path(scratch()) / f"whole-{name}"
    module.save_pretrained(folder)
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "model.safetensors")


def _case(name):
    case = next(case for case in CASES if case.name == name)
    return build(case).float()


def _albert():
    torch.manual_seed(0)
    config = transformers.AlbertConfig(
        hidden_size=16, embedding_size=8, num_attention_heads=2, num_hidden_layers=2,
        intermediate_size=16, vocab_size=40, max_position_embeddings=32,
    )  # fmt: skip
    return transformers.AlbertModel(config)


_SCRATCH = []


def scratch():
    """Return a folder that goes with this process."""
    import tempfile

    if not _SCRATCH:
        _SCRATCH.append(tempfile.TemporaryDirectory(prefix="orbitlens-fuzz-"))
    return _SCRATCH[0].name


@cache
def gguf_metadata():
    """Return the metadata of a small Llama, and of its vocabulary."""
    return {
        "llama.block_count": N_LAYERS,
        "llama.context_length": 32,
        "llama.embedding_length": N_EMBEDDED,
        "llama.feed_forward_length": 24,
        "llama.attention.head_count": N_HEADS,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-6,
        "llama.rope.dimension_count": 4,
        "llama.rope.freq_base": 50.0,
        "llama.vocab_size": 40,
        "tokenizer.ggml.tokens": [f"t{k}" for k in range(40)],
        "tokenizer.ggml.scores": [0.0] * 40,
    }


@cache
def gguf_tensors():
    """Return the tensors of the same."""
    random = np.random.default_rng(0)
    d, kv = N_EMBEDDED, N_EMBEDDED // 2
    shapes = {"token_embd": (40, d), "output_norm": (d,), "output": (40, d)}
    for k in range(N_LAYERS):
        own = {"attn_q": (d, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, d),
               "attn_norm": (d,), "ffn_norm": (d,), "ffn_up": (24, d), "ffn_gate": (24, d),
               "ffn_down": (d, 24)}  # fmt: skip
        shapes |= {f"blk.{k}.{name}": shape for name, shape in own.items()}
    return {
        f"{name}.weight": torch.from_numpy(random.normal(size=shape).astype(np.float32))
        for name, shape in shapes.items()
    }


def write_gguf(path, metadata, tensors, architecture="llama"):
    """Write a file; metadata that the writer cannot write are left out."""
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in metadata.items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint64(key, value % 2**64)
        elif isinstance(value, float):
            writer.add_float64(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value.encode(errors="replace").decode())
        elif isinstance(value, list) and value and type(value[0]) in {int, float, str}:
            writer.add_array(key, [_fitting(v) for v in value if type(v) is type(value[0])])
    for name, value in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(value.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _fitting(value):
    """Return an item of an array as the format can hold it."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    bound = 2**31 - 1 if isinstance(value, int) else 3e38
    return value if value != value else min(max(value, -bound), bound)


@cache
def gguf_bytes():
    """Return the small Llama as a file."""
    path = write_gguf(Path(scratch()) / "whole.gguf", gguf_metadata(), gguf_tensors())
    return path.read_bytes()


@cache
def tokenizer():
    """Return the files of a tokenizer, by name, as JSON data."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {f"t{k}": k for k in range(39)} | {"[UNK]": 39}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = Path(scratch()) / "whole-tokenizer"
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="[UNK]")
    fast.save_pretrained(folder)
    return {file.name: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}


@cache
def results():
    """Return saved results by kind: the class that loads one, and its data."""
    import orbitlens as ol

    folder = Path(scratch()) / "whole-gpt2"
    model("gpt2")
    opened = ol.load(folder)
    ids = [[1, 2, 3, 4, 5, 6, 7, 8]] * 4
    made = {"scan": ol.scan(opened), "trace": ol.trace(opened, ids)}
    return {name: (type(one), json.loads(json.dumps(_plain(one)))) for name, one in made.items()}


def _plain(result):
    from orbitlens.results.codec import dumps

    return json.loads(dumps(result.to_json()))


@cache
def run_folder():
    """Return the files of a training run that was stopped, by name, and its config."""
    from orbitlens.lab import training
    from orbitlens.lab.run import run_config, run_hash

    config = run_config({"task": "addition", "digits": 1, "layers": 1, "heads": 2, "width": 8,
                         "steps": 3, "batch": 8, "judged": 64, "warmup": 1})  # fmt: skip
    every, training.STATE_EVERY = training.STATE_EVERY, 0.0
    real, training.write_folder = training.write_folder, _stop
    folder = Path(scratch()) / "whole-run"
    try:
        training.train(config, folder)
    except KeyboardInterrupt:
        pass
    finally:
        training.STATE_EVERY, training.write_folder = every, real
    state = (folder / run_hash(config) / "state.safetensors").read_bytes()
    result = training.train(config, folder).to_json()
    return config, state, result


def _stop(*_):
    raise KeyboardInterrupt


SWEEP = """seeds = 2
[base]
task = "addition"
digits = 1
layers = 1
width = 8
heads = 2
steps = 3
[grid]
position = ["none", "rotary"]
[baseline]
position = "none"
[[variants]]
name = "plain"
[[variants]]
name = "wide"
width = 16
against = "plain"
"""


@cache
def study_result():
    """Return a published result of a study, as JSON data."""
    home = Path(__file__).resolve().parents[2] / "docs" / "results"
    return json.loads((home / "tokenization.json").read_text())


def make_all():
    """Make everything once, so that processes started from here on have it."""
    for name in families():
        model(name)
    for make in (gguf_bytes, tokenizer, results, run_folder, study_result):
        make()
