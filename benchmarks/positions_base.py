"""Can the base of a rotary encoding be read off the weights? Estimates against the truth.

Enters: models that `positions.py` has trained, checkpoints of others. Leaves: JSON. What a plane
carries depends on its frequency, base^(-k/n) for plane k of n, and not on its number. So if all
models had one curve of energy over frequency, its place among the planes would give the base. The
curve is taken to be a step of free height and sign in ln frequency, at `place` + `slope` times ln
context and `width` wide: these three are fitted on some streams, with their true bases, and tried
on another one and on real checkpoints. Beside it stands the guess of 10,000.

    python benchmarks/positions_base.py --runs DIR --judge fifth --real MODEL ... --out FILE
"""

import argparse
import itertools
import json
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _forensic_models import STREAMS
from torch import Tensor

from orbitlens.files import write_result
from orbitlens.heads.scores import load_scores
from orbitlens.running.model import load
from orbitlens.theory.planes import energies, profile

GUESS = 1e4
FEWEST_PLANES = 8
BASES = [10 ** (k / 20) for k in range(30, 161)]  # 32 to 100 million
PLACES, WIDTHS = (-2.0, -2.5, -3.0, -3.5, -4.0), (0.4, 0.6, 0.8, 1.2, 2.0)
SLOPES = (0.0, -0.5, -1.0)
MIDDLE = 48.0  # tokens: the context at which `place` is the step's


@dataclass(frozen=True, kw_only=True)
class Planes:
    """The energies of a model's planes, by layer."""

    name: str
    base: float
    context: int
    profiles: Tensor  # layer, plane

    @property
    def n(self) -> int:
        """Number of planes."""
        return self.profiles.shape[1]


@dataclass(frozen=True, kw_only=True)
class Step:
    """Energy as a function of ln frequency, up to height and sign."""

    place: float
    width: float
    slope: float  # of the place, in ln context

    def misfit(self, planes: Planes, base: float) -> float:
        """Return minus the nats that the step explains, over layers."""
        centre = self.place + self.slope * math.log(planes.context / MIDDLE)
        frequency = -torch.arange(planes.n, dtype=torch.float64) / planes.n * math.log(base)
        shape = torch.sigmoid((frequency - centre) / self.width)
        shape = shape - shape.mean()
        seen = planes.profiles - planes.profiles.mean(dim=1, keepdim=True)
        height = seen @ shape / shape.square().sum().clamp(min=1e-12)
        rest = (seen - height[:, None] * shape).square().sum(dim=1)
        return float(0.5 * planes.n * (rest / seen.square().sum(dim=1)).log().sum())

    def base_of(self, planes: Planes) -> float:
        """Return the base at which the step fits best."""
        return min(BASES, key=lambda base: self.misfit(planes, base))


def planes_of(path: str | Path, context: int | None = None) -> Planes | None:
    """Return the planes of a model's rotated layers; None where there are too few."""
    model = load(path)
    stack = model.architecture.stacks[0]
    specs = {k: layer.rotary for k, layer in enumerate(stack.layers) if layer.rotary is not None}
    if not specs or min(spec.d_rotary for spec in specs.values()) < 2 * FEWEST_PLANES:
        return None
    rows = []
    for k, spec in specs.items():
        scores = load_scores(model.checkpoint, k)
        total = energies(scores.w_q, scores.w_k).total
        rows.append(profile(total, spec.pairing, spec.d_rotary)[: spec.d_rotary // 2])
    first = next(iter(specs.values()))
    return Planes(
        name=Path(path).name,
        base=first.base,
        context=context or first.max_positions or 0,
        profiles=torch.stack(rows),
    )


def lab_models(runs: Path, streams: Sequence[str]) -> Iterator[Planes]:
    """Yield the trained models of some streams."""
    for folder in sorted(runs.iterdir()):
        truth = folder / "truth.json"
        if folder.name.split("-")[0] in streams and truth.exists():
            drawn = json.loads(truth.read_text(encoding="utf-8"))
            found = planes_of(folder, drawn["context"])
            if found is not None:
                yield found


def fitted(models: Sequence[Planes]) -> Step:
    """Return the step that fits models whose bases are known."""
    steps = [
        Step(place=place, width=width, slope=slope)
        for place, width, slope in itertools.product(PLACES, WIDTHS, SLOPES)
    ]
    return min(steps, key=lambda step: sum(step.misfit(each, each.base) for each in models))


def compared(step: Step, models: Sequence[Planes]) -> list[dict[str, Any]]:
    """Return the estimate of every model beside its base."""
    return [
        {
            "model": each.name,
            "base": each.base,
            "context": each.context,
            "planes": each.n,
            "estimate": step.base_of(each),
        }
        for each in models
    ]


def errors(rows: Sequence[dict[str, Any]], guess: float | None = None) -> dict[str, float]:
    """Return how far estimates are from the truth, in factors of ten."""
    far = [abs(math.log10((guess or row["estimate"]) / row["base"])) for row in rows]
    return {"median": statistics.median(far), "mean": statistics.fmean(far), "worst": max(far)}


def main() -> None:
    """Fit, judge, and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=Path, required=True, help="models of positions.py")
    parser.add_argument("--judge", choices=STREAMS, default=STREAMS[-1])
    parser.add_argument("--real", nargs="*", default=[], help="checkpoints of others")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    others = [stream for stream in STREAMS if stream != options.judge]
    chosen = list(lab_models(options.runs, others))
    step = fitted(chosen)
    judged = compared(step, list(lab_models(options.runs, [options.judge])))
    reals = [found for found in map(planes_of, options.real) if found is not None]
    result = {
        "fitted on": len(chosen),
        "step": asdict(step),
        "judged": judged,
        "real": compared(step, reals),
        "errors": {"estimate": errors(judged), "guess of 10,000": errors(judged, GUESS)},
    }
    write_result(options.out, (json.dumps(result, indent=1) + "\n").encode())
    print(json.dumps(result["errors"], indent=1), step)


if __name__ == "__main__":
    main()
