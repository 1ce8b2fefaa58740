"""Claims 6c, 6d and 7d: does convergence hurt a rotary model that learns? Trained here and now.

Enters: a bench. Leaves: outcomes with paired differences of held-out losses. A variant and what it
is compared with share seeds, data and order. The control is the same comparison where there is
nothing to learn: a text with its characters shuffled, images of noise with random labels. The
positive control is a model that is known to lose: every head averages over all it sees.
"""

import struct
from dataclasses import replace
from pathlib import Path

import torch

from orbitlens.files import write_result
from orbitlens.lab.run import RunConfig, run_config
from orbitlens.running.texts import passage
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.claim import Outcome
from orbitlens_papers.trained import judged, train_all

ENOUGH = 50_000  # characters; with fewer, a model learns the text by heart
VARIANTS = ("none", "anti", "guard", "diagonal", "averaging")
COMPARED = ("none", "anti", "guard", "diagonal")  # the variants that claims speak of
NOISE = {"digits": (150_000, 8), "mnist": (40_000, 28)}  # images at full scale, and their side
Losses = dict[str, list[float]]  # variant -> loss by seed


def run_of(bench: Bench, task: str, refinement: str, seed: int) -> RunConfig:
    """Return the config of one run, sized for the scale."""
    steps = bench.pick(4, 200 if task == "text" else 150, 2000)
    settings: dict[str, int | float | str] = {
        "task": task,
        "position": "rotary",
        "refinement": refinement,
        "layers": bench.pick(2, 3, 6),
        "heads": bench.pick(2, 2, 4),
        "width": bench.pick(16, 32, 96),
        "steps": steps,
        "batch": bench.pick(8, 32, 64),
        "lr": 3e-3,
        "warmup": max(1, steps // 10),
        "judged": bench.pick(32, 512, 2048),
        "seed": seed,
    }
    if task == "text":
        settings["context"] = bench.pick(16, 32, 64)
    return run_config(settings)


def losses(bench: Bench, task: str, *, noise: bool = False) -> Losses:
    """Return held-out losses by variant; on noise, of the compared ones alone."""
    return bench.once(f"losses {task} {noise}", lambda: _losses(bench, task, noise))


def _losses(bench: Bench, task: str, noise: bool) -> Losses:
    variants = COMPARED if noise or bench.scale is Scale.SMOKE else VARIANTS
    seeds = list(bench.seeds)[: bench.pick(2, 3, 1000)]
    places = [(variant, seed) for variant in variants for seed in seeds]
    file = noise_file(bench, task) if noise else _text_file(bench, task)
    configs = [_with_file(run_of(bench, task, *place), file) for place in places]
    if noise:  # half the steps: there is nothing that more of them could teach
        configs = [replace(config, steps=max(1, config.steps // 2)) for config in configs]
    trained = train_all(bench, configs, part="noise" if noise else "")
    result: Losses = {variant: [] for variant in variants}
    for (variant, _), run in zip(places, trained, strict=True):
        result[variant].append(run.result.loss)
    return result


def _with_file(config: RunConfig, file: Path | None) -> RunConfig:
    if file is None:
        return config
    return replace(config, options={**config.options, "file": str(file)})


def _text_file(bench: Bench, task: str) -> Path | None:
    return Path(bench.settings.text) if task == "text" and bench.settings.text else None


def obstacle(bench: Bench, task: str) -> str:
    """Say why a task cannot be run here; empty where it can."""
    if task != "text" or bench.scale is Scale.SMOKE:
        return ""
    file = _text_file(bench, task)
    if file is None:
        return (
            f"language modelling needs a text of {ENOUGH:,} characters or more: give a file of text"
        )
    if file.stat().st_size < ENOUGH:
        return f"the text has {file.stat().st_size:,} bytes; at least {ENOUGH:,} are needed"
    return ""


def compare(bench: Bench, *, task: str, worse: str, better: str) -> Outcome:
    """6c, 6d, 7d: by how much the first variant's loss is above the second's, paired over seeds."""
    reason = obstacle(bench, task)
    if reason:
        return Outcome(obstacle=reason)
    own, noise = losses(bench, task), losses(bench, task, noise=True)
    hurt = own.get("averaging")  # not at the scale of seconds
    outcome = Outcome(
        positive=None if hurt is None else estimate.difference(hurt, own["none"]),
        result=estimate.difference(own[worse], own[better]),
        control=estimate.difference(noise[worse], noise[better]),
        data={
            "losses": own,
            "noise": noise,
            "against_none": {
                name: estimate.difference(values, own["none"]).to_json()
                for name, values in own.items()
                if name != "none"
            },
        },
    )
    return judged(bench, outcome)


# --- where there is nothing to learn ---------------------------------------------------------


def noise_file(bench: Bench, task: str) -> Path:
    """Return a file of the task's kind in which nothing can be learnt beyond frequencies."""
    folder = bench.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if task == "text":
        return _shuffled_text(bench, folder)
    n, side = NOISE[task]
    return _noise_images(bench, folder, bench.pick(600, 8000, n), side)


def _shuffled_text(bench: Bench, folder: Path) -> Path:
    source = _text_file(bench, "text") or passage()
    text = source.read_text(encoding="utf-8")
    order = torch.randperm(len(text), generator=bench.generator("shuffled text"))
    file = folder / "shuffled.txt"
    write_result(file, "".join(text[k] for k in order.tolist()).encode())
    return file


def _noise_images(bench: Bench, folder: Path, n: int, side: int) -> Path:
    """Write images of noise in MNIST's format, more than a run sees: none is met twice."""
    generator = bench.generator("noise images")
    pixels = torch.randint(256, (n, side, side), generator=generator, dtype=torch.uint8)
    labels = torch.randint(10, (n,), generator=generator, dtype=torch.uint8)
    file = folder / f"noise-{side}-images-idx3-ubyte"
    write_result(file, struct.pack(">4i", 2051, n, side, side) + pixels.numpy().tobytes())
    beside = folder / f"noise-{side}-labels-idx1-ubyte"
    write_result(beside, struct.pack(">2i", 2049, n) + labels.numpy().tobytes())
    return file
