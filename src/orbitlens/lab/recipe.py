"""What a run is made of: its model, its optimizer, its learning rate, and the batch of each step.

Enters: a `RunConfig` and its task. Leaves: the pieces that the loop in `training.py` puts together.
"""

from typing import Any

import torch

from orbitlens.lab.fitting import rate_at, seeded
from orbitlens.lab.judging import full_columns
from orbitlens.lab.run import RunConfig, run_hash, task_of
from orbitlens.lab.tasks import Batch, Task, cut_at
from orbitlens.lab.tasks.base import SPLITS, stream_seed
from orbitlens.orbit import OrbitForCausalLM, OrbitForImageClassification
from orbitlens.orbit.config import OrbitConfig


def orbit_config(config: RunConfig, task: Task) -> OrbitConfig:
    """Return the config of the model that a run trains; refuses switches that do not fit."""
    sizes: dict[str, Any] = {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.inner or None,
        "initializer_range": config.init,
    }
    if task.image is None:
        sizes |= {"vocab_size": task.vocab_size, "max_position_embeddings": task.n_positions}
    else:
        image = task.image
        sizes |= {"image_size": image.size, "patch_size": image.patch}
        sizes |= {"num_channels": image.channels, "num_labels": image.labels}
    return OrbitConfig(**sizes, **config.switches)


def build_model(config: RunConfig, task: Task) -> OrbitForCausalLM | OrbitForImageClassification:
    """Return the untrained model of a run, drawn from its seed."""
    builder = OrbitForCausalLM if task.kind == "tokens" else OrbitForImageClassification
    with seeded(config.seed):
        return builder(orbit_config(config, task)).float()


def check_run(config: RunConfig) -> str:
    """Return the hash of a run after checking everything that can be checked untrained."""
    task = task_of(config)
    orbit_config(config, task)
    for split in SPLITS:
        task.batch(split, 0, 1, 0)  # refuses a task that is too small for it
    return run_hash(config)


def learning_rate(config: RunConfig, step: int) -> float:
    """Return the learning rate of a step: linear warm-up, two steps at the peak, a cosine down."""
    time = step + 1 if step < config.warmup else step
    return rate_at(time, peak=config.lr, steps=config.steps, warmup=config.warmup)


def make_optimizer(model: torch.nn.Module, config: RunConfig) -> torch.optim.AdamW:
    """Return AdamW in its fused form; matrices decay, gains and biases do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.ndim > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
    ]
    used = [group for group in groups if group["params"]]
    return torch.optim.AdamW(used, lr=config.lr, betas=(0.9, 0.98), fused=True)


def training_batch(config: RunConfig, task: Task, step: int) -> Batch:
    """Return the batch of a step; for a full mask, cut before a randomly chosen answer token."""
    batch = task.batch("train", step, config.batch, config.seed)
    if config.mask != "full" or task.kind == "images":
        return batch
    columns = full_columns(batch.targets) if not task.by_token else range(batch.targets.shape[1])
    chosen = stream_seed(f"cut/{task.name}", "train", step, config.seed) % len(columns)
    return cut_at(batch, columns[chosen])
