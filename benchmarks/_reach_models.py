"""Small models whose reach is measured: six encodings, two trained contexts, three seeds.

Enters: a text and a folder. Leaves: runs of the lab, resumed where they were stopped. Models of the
shorter context and the first seed are those that the predictor was chosen on.
"""

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
CHOSEN_ON = (32, 0)  # trained context and seed of the models that the predictor was chosen on
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

    @property
    def chosen_on(self) -> bool:
        """Whether the predictor was chosen on it."""
        return (self.context, self.seed) == CHOSEN_ON

    def trained(self, runs: Path) -> Path:
        """Train it where that is not done yet, and return the folder of the model."""
        train(self.config, runs)
        return runs / run_hash(self.config) / MODEL


def all_runs(text: Path) -> list[ReachRun]:
    """Return the models: those it was chosen on, those that judge, then more of the shorter."""
    runs = [
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
    shorter = min(CONTEXTS)
    return sorted(runs, key=lambda run: (run.context == shorter and run.seed > 0, run.seed))
