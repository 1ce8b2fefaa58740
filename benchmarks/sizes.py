"""What a scan of large models costs: 1B, 7B and 70B shapes, by header and a few sampled layers.

    python benchmarks/sizes.py --json docs/sizes.json [--only 1B,7B] [--layers 3]

Checkpoints are synthetic: shards of a layer each in bfloat16, the sampled layers' attention filled
and everything else holes, which a reader that touched them would pay for. Every shape is scanned in
a process of its own, on one thread, in processor time; its unavoidable matrix products are timed in
the same process right after. Time of the next larger shape is extrapolated by the products' number
of operations, and memory by a line through two shapes in the square of the width; both are
then measured. A shape that is in the JSON file is not measured again.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from _shards import ITEM, shard_start

GOAL_TIME = 1.5  # times the matrix products
ALLOWANCE = 300e6  # bytes, beside three layers' attention weights


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A Llama by its sizes."""

    name: str
    d_model: int
    n_heads: int
    n_kv_heads: int
    d_head: int
    n_layers: int
    d_mlp: int
    n_vocabulary: int

    def layer(self, number: int) -> dict[str, tuple[int, ...]]:
        """Return the tensors of one layer."""
        d, q, kv = self.d_model, self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        own = {
            "self_attn.q_proj.weight": (q, d),
            "self_attn.k_proj.weight": (kv, d),
            "self_attn.v_proj.weight": (kv, d),
            "self_attn.o_proj.weight": (d, q),
            "mlp.gate_proj.weight": (self.d_mlp, d),
            "mlp.up_proj.weight": (self.d_mlp, d),
            "mlp.down_proj.weight": (d, self.d_mlp),
            "input_layernorm.weight": (d,),
            "post_attention_layernorm.weight": (d,),
        }
        return {f"model.layers.{number}.{name}": shape for name, shape in own.items()}

    @property
    def attention_bytes(self) -> int:
        """Attention weights of a layer."""
        return 2 * ITEM * self.d_model * self.d_head * (self.n_heads + self.n_kv_heads)

    @property
    def operations(self) -> float:
        """Multiplications of a layer's products: eight Gram blocks and the layer's map, a head."""
        d, r = self.d_model, self.d_head
        return self.n_heads * (8 * r * r * d + r * r * d + r * d * d)


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(name="1B", d_model=2048, n_heads=32, n_kv_heads=8, d_head=64, n_layers=16,
              d_mlp=8192, n_vocabulary=128256),
        Shape(name="7B", d_model=4096, n_heads=32, n_kv_heads=32, d_head=128, n_layers=32,
              d_mlp=11008, n_vocabulary=32000),
        Shape(name="70B", d_model=8192, n_heads=64, n_kv_heads=8, d_head=128, n_layers=80,
              d_mlp=28672, n_vocabulary=128256),
    )
}  # fmt: skip


def sampled(shape: Shape, n_layers: int) -> list[int]:
    """Return layers at equal distances, the first and the last among them."""
    if n_layers == 1:
        return [0]
    return sorted({round(k * (shape.n_layers - 1) / (n_layers - 1)) for k in range(n_layers)})


def write_model(folder: Path, shape: Shape, filled: list[int]) -> None:
    """Write a sharded checkpoint whose sampled layers have random attention."""
    tables = {"model.embed_tokens.weight": (shape.n_vocabulary, shape.d_model)}
    tables |= {"model.norm.weight": (shape.d_model,)}
    tables |= {"lm_head.weight": (shape.n_vocabulary, shape.d_model)}
    index: dict[str, str] = {}
    shards = [tables, *(shape.layer(number) for number in range(shape.n_layers))]
    for number, tensors in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        index |= dict.fromkeys(tensors, name)
        _write_shard(folder / name, tensors, seed=number if number - 1 in filled else None)
    config = {
        "model_type": "llama",
        "hidden_size": shape.d_model,
        "num_hidden_layers": shape.n_layers,
        "num_attention_heads": shape.n_heads,
        "num_key_value_heads": shape.n_kv_heads,
        "head_dim": shape.d_head,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _write_shard(file: Path, tensors: dict[str, tuple[int, ...]], *, seed: int | None) -> None:
    import torch

    start, begins, length = shard_start(tensors)
    with file.open("wb") as opened:
        opened.write(start)
        for name, shape in tensors.items() if seed is not None else ():
            if "self_attn" in name or "input_layernorm" in name:
                generator = torch.Generator().manual_seed(seed)
                values = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
                opened.seek(begins[name])
                opened.write(values.bfloat16().view(torch.uint8).numpy().tobytes())
        opened.truncate(length)


def measure(folder: Path, layers: list[int]) -> dict[str, Any]:
    """Scan in this process, then time the products of one layer."""
    import torch
    from scan import gram_blocks, layer_map

    from orbitlens.heads.layers import load_layer
    from orbitlens.running.model import load
    from orbitlens.scanning.api import scan
    from orbitlens.scanning.options import ScanOptions
    from orbitlens.theory.maps import HeadMaps

    torch.set_num_threads(1)
    opened = time.process_time()
    model = load(folder)
    opening = time.process_time() - opened
    started = time.process_time()
    result = scan(model, ScanOptions(layers=layers))
    seconds = (time.process_time() - started) / len(layers)
    peak = result.cost.peak_rss_bytes
    maps = [HeadMaps.of(head) for head in load_layer(model.checkpoint, layers[0])]
    started = time.process_time()
    for head in maps:
        gram_blocks(head)
    layer_map(maps)
    products = time.process_time() - started
    return {
        "layers": layers,
        "opening_seconds": opening,
        "seconds_a_layer": seconds,
        "products_seconds": products,
        "peak_bytes": peak,
        "bytes_read": result.cost.bytes_read,
        "bytes_total": result.cost.bytes_total,
    }


def run_case(shape: Shape, n_layers: int) -> dict[str, Any]:
    """Write a model, measure it in a process of its own, and hold it against the goals."""
    layers = sampled(shape, n_layers)
    with tempfile.TemporaryDirectory(prefix="orbitlens-sizes-") as folder:
        write_model(Path(folder), shape, layers)
        command = [
            sys.executable,
            __file__,
            "--measure",
            folder,
            "--layer-list",
            json.dumps(layers),
        ]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    limit = ALLOWANCE + 3 * shape.attention_bytes
    return (
        asdict(shape)
        | found
        | {
            "operations": shape.operations,
            "memory_limit": limit,
            "ratio": found["seconds_a_layer"] / found["products_seconds"],
            "time_met": found["seconds_a_layer"] <= GOAL_TIME * found["products_seconds"],
            "memory_met": found["peak_bytes"] <= limit,
        }
    )


def extrapolated(cases: dict[str, Any]) -> dict[str, Any]:
    """Return what smaller shapes say of larger ones, beside what was measured."""
    said: dict[str, Any] = {}
    names = [name for name in SHAPES if name in cases]
    for smaller, larger in pairwise(names):
        a, b = cases[smaller], cases[larger]
        predicted = a["seconds_a_layer"] * b["operations"] / a["operations"]
        said[larger] = {
            "from": smaller,
            "seconds_a_layer": predicted,
            "seconds_ratio": b["seconds_a_layer"] / predicted,
        }
    if len(names) == len(SHAPES):
        first, second, third = (cases[name] for name in names)
        squares = [case["d_model"] ** 2 for case in (first, second, third)]
        slope = (second["peak_bytes"] - first["peak_bytes"]) / (squares[1] - squares[0])
        peak = second["peak_bytes"] + slope * (squares[2] - squares[1])
        said[names[2]] |= {"peak_bytes": peak, "peak_ratio": third["peak_bytes"] / peak}
    return said


def main() -> int:
    """Measure the shapes asked for; 1 if a goal was missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, required=False)
    parser.add_argument("--only", default=",".join(SHAPES))
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--layer-list", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        print(json.dumps(measure(arguments.measure, json.loads(arguments.layer_list))))
        return 0
    kept: dict[str, Any] = {"cases": {}}
    if arguments.json is not None and arguments.json.exists():
        kept = json.loads(arguments.json.read_text())
    for name in arguments.only.split(","):
        if name not in kept["cases"]:
            kept["cases"][name] = run_case(SHAPES[name], arguments.layers)
        kept["extrapolated"] = extrapolated(kept["cases"])
        if arguments.json is not None:
            arguments.json.write_text(json.dumps(kept, indent=1) + "\n")
        print(name, json.dumps(kept["cases"][name]))
    return int(not all(c["time_met"] and c["memory_met"] for c in kept["cases"].values()))


if __name__ == "__main__":
    sys.exit(main())
