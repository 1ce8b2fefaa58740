"""A case: damaged files in a folder, and what orbitlens is asked to do with them.

Three formats: "safetensors" and "gguf" damage weights and headers, "json" damages configs, indices,
tokenizers, saved results, states of runs and sweep files. A case depends on its format and its
number alone.
"""

import json
import shutil
import struct
from random import Random

from fuzzing import damage, wholes

FORMATS = ("safetensors", "gguf", "json")
IDS = [[1, 2, 3, 4, 5, 6, 7, 8]] * 2
RUN_EVERY = 12  # of these one is run, not only read: that takes ten times as long


def make(kind, number, folder):
    """Write the files of one case into an empty folder; return what to do with them."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    random = Random(f"{kind}/{number}")
    return {"safetensors": _safetensors, "gguf": _gguf, "json": _json}[kind](random, folder)


# --- what is done with a model -----------------------------------------------------------------


def scan_model(path):
    """Open a model and read all its heads; the result must be JSON."""
    import orbitlens as ol

    json.dumps(ol.scan(ol.load(path)).to_json(), allow_nan=False)


def run_model(path):
    """Run a model on a few tokens."""
    import orbitlens as ol

    json.dumps(ol.trace(ol.load(path), IDS).to_json(), allow_nan=True)


def _use(path, random):
    runs = random.randrange(RUN_EVERY) == 0
    return (lambda: run_model(path)) if runs else (lambda: scan_model(path))


# --- formats -----------------------------------------------------------------------------------


def _safetensors(random, folder):
    from safetensors.torch import save

    config, weights = wholes.model(random.choice(wholes.families()))
    (folder / "config.json").write_text(json.dumps(config))
    file, kind = folder / "model.safetensors", random.randrange(3)
    if kind == 0:
        file.write_bytes(damage.bytes_of(save(weights), random))
    elif kind == 1:
        file.write_bytes(_with_damaged_header(save(weights), random))
    else:
        file.write_bytes(save(damage.weights_of(weights, random)))
    return _use(folder, random)


def _with_damaged_header(data, random):
    length = struct.unpack("<Q", data[:8])[0]
    header = damage.text_of(damage.json_of(json.loads(data[8 : 8 + length]), random), random)
    return struct.pack("<Q", len(header)) + header + data[8 + length :]


def _gguf(random, folder):
    path, kind = folder / "model.gguf", random.randrange(3)
    if kind == 0:
        path.write_bytes(damage.bytes_of(wholes.gguf_bytes(), random))
    elif kind == 1:
        metadata = damage.json_of(wholes.gguf_metadata(), random)
        architecture = random.choice(["llama"] * 4 + ["gpt2", "qwen2", "gemma3", "bert", "t5"])
        own = {k.replace("llama.", f"{architecture}."): v for k, v in metadata.items()}
        wholes.write_gguf(path, own, wholes.gguf_tensors(), architecture)
    else:
        weights = damage.weights_of(wholes.gguf_tensors(), random)
        wholes.write_gguf(path, wholes.gguf_metadata(), weights)
    return _use(path, random)


def _json(random, folder):
    makers = [_config, _config, _config, _index, _tokenizer, _saved, _saved, _run, _sweep, _study]
    return random.choice(makers)(random, folder)


def _config(random, folder):
    from safetensors.torch import save_file

    config, weights = wholes.model(random.choice(wholes.families()))
    save_file(weights, folder / "model.safetensors")
    text = damage.text_of(damage.json_of(config, random), random)
    (folder / "config.json").write_bytes(text)
    return _use(folder, random)


def _index(random, folder):
    from safetensors.torch import save_file

    config, weights = wholes.model("llama")
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "a.safetensors")
    index = {"metadata": {"total_size": 1}, "weight_map": dict.fromkeys(weights, "a.safetensors")}
    text = damage.text_of(damage.json_of(index, random), random)
    (folder / "model.safetensors.index.json").write_bytes(text)
    return lambda: scan_model(folder)


def _tokenizer(random, folder):
    from orbitlens.running.loading import load_tokenizer

    files = wholes.tokenizer()
    hurt = random.choice(sorted(files))
    for name, data in files.items():
        whole = json.dumps(data).encode()
        text = damage.text_of(damage.json_of(data, random), random) if name == hurt else whole
        (folder / name).write_bytes(text)
    return lambda: load_tokenizer(folder)


def _saved(random, folder):
    loader, data = random.choice([wholes.results()[name] for name in sorted(wholes.results())])
    file = folder / "result.json"
    file.write_bytes(damage.text_of(damage.json_of(data, random), random))
    return lambda: json.dumps(loader.load(file).summary())


def _run(random, folder):
    from orbitlens.lab.run import run_hash
    from orbitlens.lab.training import train

    config, state, result = wholes.run_folder()
    place = folder / run_hash(config)
    place.mkdir()
    if random.random() < 0.5:
        text = damage.text_of(damage.json_of(result, random), random)
        (place / "result.json").write_bytes(text)
    elif random.random() < 0.5:
        (place / "state.safetensors").write_bytes(_with_damaged_header(state, random))
    else:
        (place / "state.safetensors").write_bytes(damage.bytes_of(state, random))
    return lambda: train(config, folder)


def _sweep(random, folder):
    from orbitlens.lab.sweep_file import read_sweep

    file = folder / "sweep.toml"
    file.write_bytes(damage.bytes_of(wholes.SWEEP.encode(), random))
    return lambda: read_sweep(file)


def _study(random, folder):
    from orbitlens_papers.result import result_from_json

    data = damage.json_of(wholes.study_result(), random)
    return lambda: result_from_json(data).to_json()
