"""Small models whose reach is measured: six encodings, two trained contexts, three seeds.

Enters: a text and a folder. Leaves: runs of the lab, resumed where they were stopped. Models of the
shorter context are those that predictors are chosen on; those of the longer one judge them.

    python benchmarks/_reach_models.py TEXT --runs DIR
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitlens.lab.run import RunConfig, run_config, run_hash
from orbitlens.lab.run_state import MODEL
from orbitlens.lab.training import train

KINDS: dict[str, dict[str, Any]] = {
    "rotary-10": {"position": "rotary", "rotary_base": 10.0},
    "rotary-300": {"position": "rotary", "rotary_base": 300.0},
    "rotary-10000": {"position": "rotary", "rotary_base": 10000.0},
    "alibi": {"position": "alibi"},
    "learned": {"position": "learned"},
    "none": {"position": "none"},
}
CONTEXTS = {32: 24, 64: 12}  # trained context -> contexts of a batch: the same number of tokens
SEEDS = (0, 1, 2)
CHOSEN_ON = 32  # the trained context of the models that predictors are chosen on
RECIPE: dict[str, Any] = {
    "task": "text",
    "layers": 3,
    "heads": 4,
    "width": 64,
    "inner": 192,
    "steps": 450,
    "lr": 5e-3,
    "warmup": 50,
    "weight_decay": 0.05,
    "judged": 128,
}


@dataclass(frozen=True, kw_only=True)
class ReachRun:
    """One of the models."""

    kind: str
    context: int
    seed: int
    config: RunConfig

    @property
    def name(self) -> str:
        """Return its name in tables."""
        return f"{self.kind}/{self.context}/{self.seed}"

    def folder(self, runs: Path) -> Path:
        """Return where its model is."""
        return runs / run_hash(self.config) / MODEL


def all_runs(text: Path) -> list[ReachRun]:
    """Return the models, seed by seed."""
    return [
        ReachRun(
            kind=kind,
            context=context,
            seed=seed,
            config=run_config(
                {
                    **RECIPE,
                    **switches,
                    "context": context,
                    "batch": batch,
                    "seed": seed,
                    "file": str(text),
                }
            ),
        )
        for seed in SEEDS
        for context, batch in CONTEXTS.items()
        for kind, switches in KINDS.items()
    ]


def main() -> None:
    """Train what is not trained yet."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("--runs", type=Path, required=True)
    given = parser.parse_args()
    for run in all_runs(given.text):
        result = train(run.config, given.runs)
        print(
            f"{time.strftime('%H:%M:%S')} {run.name:22} {result.loss:.3f} nats, "
            f"{result.cpu_seconds:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
