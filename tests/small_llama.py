"""A very small Llama written by hand, to be damaged; and the command line, run in this process."""

import contextlib
import io
import json
import sys
from dataclasses import dataclass
from unittest import mock

import torch
from safetensors.torch import save_file

from orbitlens.cli import app as cli

CONFIG = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 50.0},
}
SHAPES = {"q_proj": (8, 8), "k_proj": (4, 8), "v_proj": (4, 8), "o_proj": (8, 8)}


def small_weights(n_layers=2, dtype=torch.float32):
    """Return every tensor of the model, all biases there."""
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(n_layers):
        place = f"model.layers.{layer}"
        weights[f"{place}.input_layernorm.weight"] = torch.ones(8)
        weights[f"{place}.input_layernorm.bias"] = 0.1 * torch.randn(8, generator=generator)
        for name, shape in SHAPES.items():
            values = torch.randn(*shape, generator=generator)
            weights[f"{place}.self_attn.{name}.weight"] = values
            weights[f"{place}.self_attn.{name}.bias"] = 0.1 * values[:, 0].clone()
    return {name: value.to(dtype) for name, value in weights.items()}


def write_config(folder, **changes):
    """Write the config with some keys changed; `...` takes a key out."""
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not ...}
    (folder / "config.json").write_text(json.dumps(config))


def write_small_llama(folder, weights=None, **changes):
    """Write config and weights into `folder` and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_config(folder, **changes)
    save_file(weights or small_weights(), folder / "model.safetensors")
    return folder


@dataclass(frozen=True)
class Outcome:
    """What a run of the command line left behind."""

    code: int
    out: str
    err: str


def run(*arguments, encoding="utf-8"):
    """Run `orbitlens ARGUMENTS` in this process, as its script would, with output piped."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    err = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace")
    argv = ["orbitlens", *map(str, arguments)]
    with (
        mock.patch.object(sys, "argv", argv),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            cli.main()
            code = 0
        except SystemExit as stop:
            code = stop.code or 0
    return Outcome(code=code, out=_written(out), err=_written(err))


def _written(stream):
    stream.flush()
    return stream.buffer.getvalue().decode(stream.encoding)


def refused(*arguments, says):
    """Run the command line; assert that it refuses with one message that has all of `says`."""
    outcome = run(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.out == ""
    assert outcome.err.startswith("orbitlens: ")
    assert "Traceback" not in outcome.err
    missing = [words for words in says if words not in outcome.err]
    assert not missing, f"{missing} not in: {outcome.err}"
    return outcome.err
