"""Train the zoo: the exact recipe of the models that orbitlens ships.

Enters: a text file. Leaves: one folder a model, ready for `transformers`: weights in float16, a
tokenizer of characters, `recipe.json` (every setting, the text's checksum, losses before and after
rounding) and `log.jsonl` (losses while training).

    python zoo/train_zoo.py TEXT --runs DIR [--out DIR] [--only NAME]
"""

import argparse
import hashlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from orbitlens.lab.judging import judge
from orbitlens.lab.run import RunConfig, run_config, run_hash, task_of
from orbitlens.lab.run_state import LOG, MODEL, RESULT
from orbitlens.lab.tasks.language import TextTask
from orbitlens.lab.tokenizer import character_tokenizer
from orbitlens.lab.training import Tick, train
from orbitlens.orbit import OrbitForCausalLM

POSITIONS = ("none", "learned", "rotary", "alibi")
RECIPE: dict[str, Any] = {
    "task": "text",
    "context": 128,
    "layers": 4,
    "heads": 4,
    "width": 64,
    "inner": 192,
    "steps": 1400,
    "batch": 16,
    "lr": 5e-3,
    "warmup": 100,
    "weight_decay": 0.05,
    "judged": 400,
    "seed": 0,
}
STEPS = {"none": 2800}  # without an encoding, order is inferred from the mask, which takes longer
HOME = Path(__file__).resolve().parents[1] / "src" / "orbitlens" / "checkpoint" / "zoo_models"


def config_of(position: str, text: Path) -> RunConfig:
    """Return the run of one model."""
    steps = STEPS.get(position, RECIPE["steps"])
    return run_config({**RECIPE, "position": position, "steps": steps, "file": str(text)})


def ship(config: RunConfig, run: Path, target: Path) -> None:
    """Write one trained run as a folder of the zoo."""
    task = task_of(config)
    assert isinstance(task, TextTask)
    model = OrbitForCausalLM.from_pretrained(run / MODEL, dtype=torch.float16)
    target.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(target)
    character_tokenizer(task).save_pretrained(target)
    shutil.copyfile(run / LOG, target / "log.jsonl")
    rounded = OrbitForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    score = judge(rounded, task, split="test", n_examples=config.judged, batch=config.batch)
    result = json.loads((run / RESULT).read_text(encoding="utf-8"))
    recipe = {
        "run": result["config"] | {"options": {"context": task.context}},
        "text_sha256": hashlib.sha256(Path(config.options["file"]).read_bytes()).hexdigest(),  # type: ignore[arg-type]
        "parameters": result["parameters"],
        "seconds": result["seconds"],
        "test_loss_float32": result["loss"],
        "test_loss": score.loss,
        "test_accuracy": score.accuracy,
        "torch": torch.__version__.split("+")[0],
    }
    text = json.dumps(recipe, indent=1, sort_keys=True) + "\n"
    (target / "recipe.json").write_text(text, encoding="utf-8")


def show(tick: Tick) -> None:
    """Print how far a run is, on a terminal."""
    if sys.stderr.isatty():
        line = f"\r{tick.step}/{tick.steps} loss {tick.loss:.3f} {tick.rate:.1f}/s"
        print(line, end="", file=sys.stderr)


def main() -> None:
    """Train what is asked for; runs that are done are not repeated, killed ones go on."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="a UTF-8 text, such as tiny Shakespeare")
    parser.add_argument("--runs", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--out", type=Path, default=HOME, help="where the models go")
    parser.add_argument("--only", choices=POSITIONS, help="one model instead of all")
    options = parser.parse_args()
    for position in [options.only] if options.only else POSITIONS:
        config = config_of(position, options.text)
        result = train(config, options.runs, progress=show)
        ship(config, options.runs / run_hash(config), options.out / f"orbit-nano-{position}")
        print(f"orbit-nano-{position}: test loss {result.loss:.4f}, {result.parameters} parameters")


if __name__ == "__main__":
    main()
