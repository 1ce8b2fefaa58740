"""Past failures, each made anew: files that once raised a raw error, hung, or took gigabytes.

`CORPUS` maps a name to a function of a folder, which writes the files and returns what to do.
Files that take gigabytes where they are not refused are in tests/checkpoint/test_bounds.py.
"""

import json
import os

import torch
from safetensors.torch import save_file

from fuzzing import wholes
from fuzzing.cases import run_model, scan_model


def _model(folder, *, family="llama", change=None, **config):
    stored, weights = wholes.model(family)
    weights = {name: value.clone() for name, value in weights.items()}
    if change is not None:
        for name, value in weights.items():
            change(name, value)
    (folder / "config.json").write_text(json.dumps(stored | config))
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def _scaled(factor):
    def make(folder):
        _model(folder, change=lambda name, value: value.mul_(factor))
        return lambda: scan_model(folder)

    return make


def _one_row(name, value):
    """Give value maps rank one: torch's LAPACK gives up on some of those."""
    if name.endswith("v_proj.weight"):
        value[1:] = value[:1].clone()


def _rank_one(folder):
    _model(folder, change=_one_row)
    return lambda: scan_model(folder)


def _rank_one_gguf(folder):
    weights = {name: value.clone() for name, value in wholes.gguf_tensors().items()}
    for name, value in weights.items():
        if "attn_v" in name:
            value[1:] = value[:1].clone()
            value.mul_(1e-10)
    path = wholes.write_gguf(folder / "m.gguf", wholes.gguf_metadata(), weights)
    return lambda: scan_model(path)


def _filled(part, value):
    def make(folder):
        _model(folder, change=lambda name, w: w.fill_(value) if part in name else None)
        return lambda: run_model(folder)

    return make


def _nothing_to_normalise(folder):
    """Give a norm on attention's output zeros alone, which it would divide by their length."""
    _model(folder, family="olmo2", change=lambda name, w: w.fill_(0) if "v_proj" in name else None)
    return lambda: scan_model(folder)


def _config(**changes):
    def make(folder):
        _model(folder, **changes)
        return lambda: run_model(folder)

    return make


def _gguf_of_another_width(folder):
    """Say that layers are GPT-2's, whose transformers class then cannot be run."""
    metadata = {k.replace("llama.", "gpt2."): v for k, v in wholes.gguf_metadata().items()}
    path = wholes.write_gguf(folder / "m.gguf", metadata, wholes.gguf_tensors(), "gpt2")
    return lambda: run_model(path)


def _tokenizer(**changes):
    def make(folder):
        from orbitlens.running.loading import load_tokenizer

        for name, data in wholes.tokenizer().items():
            more = changes if name == "tokenizer.json" else {}
            (folder / name).write_text(json.dumps(data | more))
        return lambda: load_tokenizer(folder)

    return make


def _pipe(name):
    def make(folder):
        _model(folder)
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        return lambda: scan_model(folder / name if name.endswith(".gguf") else folder)

    return make


def _result(text):
    def make(folder):
        import orbitlens as ol

        (folder / "result.json").write_text(text)
        return lambda: ol.Trace.load(folder / "result.json")

    return make


def _trace_of_no_closure(folder):
    loader, data = wholes.results()["trace"]
    data = json.loads(json.dumps(data))
    for place in _objects(data):
        if isinstance(place.get("closure"), str):
            place["closure"] = ""
    (folder / "trace.json").write_text(json.dumps(data))
    return lambda: loader.load(folder / "trace.json").summary()


def _objects(data):
    if isinstance(data, dict):
        yield data
    for item in data.values() if isinstance(data, dict) else data if isinstance(data, list) else ():
        yield from _objects(item)


def _run(text):
    def make(folder):
        from orbitlens.lab.run import run_hash
        from orbitlens.lab.training import train

        config, _, _ = wholes.run_folder()
        (folder / run_hash(config)).mkdir()
        (folder / run_hash(config) / "result.json").write_text(text)
        return lambda: train(config, folder)

    return make


def _study_with_a_number_for_a_word(folder):
    from orbitlens_papers.result import result_from_json

    data = json.loads(json.dumps(wholes.study_result()))
    data["findings"][0]["claim"]["why"] = 0.5
    return lambda: result_from_json(data)


CORPUS = {
    "weights of 1e30": _scaled(1e30),
    "weights of 1e-30": _scaled(1e-30),
    "weights of 1e-38": _scaled(1e-38),
    "weights of NaN": _scaled(float("nan")),
    "value maps of rank one": _rank_one,
    "tiny value maps of rank one, GGUF": _rank_one_gguf,
    "values of 0 under a norm of the output": _nothing_to_normalise,
    "a norm of gain 0, run": _filled("input_layernorm", 0.0),
    "embeddings of NaN, run": _filled("embed_tokens", float("nan")),
    "embeddings all equal, run": _filled("embed_tokens", 1.0),
    "10,000 layers": _config(num_hidden_layers=10_000),
    "2**31 tokens": _config(vocab_size=2**31),
    "architectures that is no list": _config(architectures=7),
    "GGUF of another width, run": _gguf_of_another_width,
    "a tokenizer with no rule": _tokenizer(post_processor=7),
    "a tokenizer with no model": _tokenizer(model=None),
    "a pipe for GGUF": _pipe("x.gguf"),
    "a pipe for weights": _pipe("model.safetensors"),
    "a pipe for a config": _pipe("config.json"),
    "{} for a trace": _result("{}"),
    "[] for a trace": _result("[]"),
    "a trace of no closure": _trace_of_no_closure,
    "{} for the result of a run": _run("{}"),
    "[] for the result of a run": _run("[]"),
    "a number for a word in a study": _study_with_a_number_for_a_word,
}


def make(name, number, folder):
    """Write the files of one past failure into an empty folder; return what to do with them."""
    import shutil

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    torch.manual_seed(number)
    return CORPUS[name](folder)
