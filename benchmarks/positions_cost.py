"""What forensics of a 7B-shaped checkpoint costs, beside a plain read of the bytes it needs.

Enters: nothing, or a shape. Leaves: a table, and JSON where asked for. Layers of a Llama of 7B
parameters are written in bfloat16, one shard a layer, into a temporary folder: queries and keys
with a planted rotation, everything else as holes, which a reader that touches it would pay for. The
page cache is dropped before each side, and the two take turns; every side is a process of its own.

    python benchmarks/positions_cost.py --layers 4 --json FILE
"""

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from _shards import shard_start

WIDTH, HEADS, D_HEAD, HIDDEN, VOCABULARY = 4096, 32, 128, 11008, 32000
GOAL = 2.0  # times as long as a plain read of the same bytes, once the library is imported
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": WIDTH,
    "num_attention_heads": HEADS,
    "num_key_value_heads": HEADS,
    "intermediate_size": HIDDEN,
    "vocab_size": VOCABULARY,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 4096,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    "torch_dtype": "bfloat16",
    "tie_word_embeddings": False,
}


def write_model(folder: Path, n_layers: int) -> None:
    """Write a sharded checkpoint: shard 0 has the tables, every other one a layer."""
    index: dict[str, str] = {}
    shards: list[dict[str, tuple[int, ...]]] = [
        {
            "model.embed_tokens.weight": (VOCABULARY, WIDTH),
            "model.norm.weight": (WIDTH,),
            "lm_head.weight": (VOCABULARY, WIDTH),
        }
    ]
    shards += [_layer_shapes(layer) for layer in range(n_layers)]
    generator = torch.Generator().manual_seed(0)
    for number, shapes in enumerate(shards):
        name = f"model-{number + 1:05d}-of-{len(shards):05d}.safetensors"
        index |= dict.fromkeys(shapes, name)
        _write_shard(folder / name, shapes, generator)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": n_layers}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))


def _layer_shapes(layer: int) -> dict[str, tuple[int, ...]]:
    start = f"model.layers.{layer}."
    attention = {f"self_attn.{part}_proj.weight": (WIDTH, WIDTH) for part in "qkvo"}
    mlp = {
        "mlp.gate_proj.weight": (HIDDEN, WIDTH),
        "mlp.up_proj.weight": (HIDDEN, WIDTH),
        "mlp.down_proj.weight": (WIDTH, HIDDEN),
        "input_layernorm.weight": (WIDTH,),
        "post_attention_layernorm.weight": (WIDTH,),
    }
    return {start + name: shape for name, shape in (attention | mlp).items()}


def _write_shard(
    file: Path, shapes: dict[str, tuple[int, ...]], generator: torch.Generator
) -> None:
    start, begins, length = shard_start(shapes)
    with file.open("wb") as opened:
        opened.write(start)
        for name in shapes:
            if is_read(name):
                opened.seek(begins[name])
                opened.write(_planted(generator).view(torch.uint8).numpy().tobytes())
        opened.truncate(length)
        os.fsync(opened.fileno())


def _planted(generator: torch.Generator) -> torch.Tensor:
    """Return rows whose size falls from plane to plane, in halves."""
    gain = torch.linspace(1.5, 0.5, D_HEAD // 2).repeat(2).repeat(HEADS)
    return (0.02 * gain[:, None] * torch.randn(WIDTH, WIDTH, generator=generator)).bfloat16()


def is_read(name: str) -> bool:
    """Say whether forensics needs a tensor."""
    return "q_proj" in name or "k_proj" in name


# --- sides, each in a process of its own ------------------------------------------------------


def plain(folder: Path) -> dict[str, Any]:
    """Read the bytes of queries and keys, one tensor at a time, and do nothing with them."""
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            (length,) = struct.unpack("<Q", opened.read(8))
            header = json.loads(opened.read(length))
            for name, entry in header.items():
                if is_read(name):
                    begin, end = entry["data_offsets"]
                    opened.seek(8 + length + begin)
                    total += len(opened.read(end - begin))
    return {"bytes": total}


def forensics(folder: Path) -> dict[str, Any]:
    """Run the verb on the weights alone."""
    from orbitlens.encodings.api import positions

    found = positions(folder)
    assert all(layer.agrees for layer in found.layers), found.summary()
    return {"bytes": found.cost.bytes_read}


SIDES = {"plain read": plain, "positions": forensics}


def side(name: str, folder: Path) -> dict[str, Any]:
    """Run one side: seconds, bytes fetched from the disk, and memory beyond that of the imports."""
    if name == "positions":
        import orbitlens.encodings.api  # noqa: F401 - not part of what is timed
    before, fetched = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, _fetched()
    started, processor = time.perf_counter(), time.process_time()
    found = SIDES[name](folder)
    return found | {
        "seconds": time.perf_counter() - started,
        "processor": time.process_time() - processor,
        "fetched": _fetched() - fetched,
        "memory": 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before),
    }


def _fetched() -> int:
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"])


def drop_cache(folder: Path) -> None:
    """Have the system forget the files, so that a side reads them from the disk."""
    for file in folder.iterdir():
        with file.open("rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run_side(name: str, folder: Path, *, cold: bool) -> dict[str, Any]:
    """Run a side in a process of its own."""
    if cold:
        drop_cache(folder)
    command = [sys.executable, __file__, "--side", name, "--folder", str(folder)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the model, run both sides in turns, and print the least of each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        print(json.dumps(side(options.side, options.folder)))
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_model(folder, options.layers)
        size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        runs = [
            {name: run_side(name, folder, cold=True) for name in SIDES}
            for _ in range(options.repeats)
        ]
    best = {name: min((r[name] for r in runs), key=lambda r: r["seconds"]) for name in SIDES}
    ratio = best["positions"]["seconds"] / best["plain read"]["seconds"]
    result = {"layers": options.layers, "file size": size, "ratio": ratio, "goal": GOAL} | best
    print(f"{options.layers} layers of 7B shape, {size / 1e9:.2f} GB in bfloat16")
    for name, found in best.items():
        print(
            f"{name:11} {found['bytes'] / 1e6:6.0f} MB asked for, {found['fetched'] / 1e6:6.0f} MB "
            f"fetched, {found['seconds']:.2f} s ({found['processor']:.2f} s of the processor), "
            f"{found['memory'] / 1e6:.0f} MB of memory"
        )
    print(f"positions takes {ratio:.2f} times as long as the plain read (goal: {GOAL:g})")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
