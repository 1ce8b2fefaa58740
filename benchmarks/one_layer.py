"""Flows against layers: what one unit of time does to a model's own tokens, and what the model did.

    python benchmarks/one_layer.py MODEL[=TEXT] ... --json docs/simulate-layers.json

For every layer and head of each model a flow starts from the model's tokens of one context and runs
for one unit of time; the change of S = ln(1 - C), C the mean cosine over pairs, is set beside what
attention, or the head alone, did to the same tokens. Once with each token at its own length, once
on the sphere at one length for all (post-norm models have only this). Printed: correlation, mean
error and mean size, and how many signs are right of those that are clear, beside how many have
the sign that most have. Without a text a model gets the package's passage, or random ids, or noise.
"""

import argparse
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

import orbitlens as ol
from orbitlens.errors import InputError
from orbitlens.flows.outcome import TURN
from orbitlens.flows.real_tokens import layer_tokens
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.simulation import simulate
from orbitlens.flows.system import Geometry
from orbitlens.running.model import Model

N_TOKENS = 64
OPTIONS = SimulateOptions(until=1.0, rtol=1e-5)
WAYS = {"own lengths": None, "one length": Geometry.SPHERE}


@dataclass(frozen=True, kw_only=True)
class Row:
    """How well the flow says what one kind of part does."""

    model: str
    way: str
    geometry: str
    part: str  # "layers" or "heads"
    n_tokens: int
    n: int
    correlation: float
    mean_error: float
    mean_size: float  # of the measured changes
    n_clear: int  # measured beyond the bound for a sign
    n_right: int
    n_majority: int  # clear ones that have the commoner sign


def main() -> None:
    """Run all models and write what came out."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="MODEL[=TEXT]")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    rows = []
    for entry in given.models:
        name, _, text = entry.partition("=")
        rows += rows_of(ol.load(name), Path(text) if text else None)
    for row in rows:
        print(
            f"{row.model:24} {row.way:11} {row.geometry:7} {row.part:6} {row.n:4}  "
            f"r {row.correlation:5.2f}  error {row.mean_error:.4f} of {row.mean_size:.4f}  "
            f"signs {row.n_right} of {row.n_clear}, majority {row.n_majority}"
        )
    if given.json is not None:
        text = json.dumps({"rows": [asdict(row) for row in rows]}, indent=1)
        given.json.write_text(text + "\n", encoding="utf-8")


def rows_of(model: Model, text: Path | None) -> list[Row]:
    """Return the rows of one model: layers and heads, both ways."""
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    geometries = {}
    for index in range(model.architecture.stacks[-1].n_layers):
        tokens = layer_tokens(model, text, layer=index, n_tokens=N_TOKENS)
        layer = model.layer(index)
        targets = [("layers", layer), *(("heads", head) for head in layer)]
        post_norm = layer.stack.post_norm
        for way, geometry in WAYS.items():
            if post_norm and geometry is None:
                continue
            options = replace(OPTIONS, geometry=geometry)
            for part, target in targets:
                try:
                    run = simulate(target, options, tokens=tokens)
                except InputError as error:
                    print(f"{model.name}, layer {index}, {part}: {error}")
                    continue
                geometries[way] = run.geometry.value
                if run.measured is not None:
                    step = run.measured
                    changes = (step.log_change, step.simulated_log_change)
                    pairs.setdefault((way, part), []).append(changes)
    n = len(tokens.before)
    return [_row(model.name, way, geometries[way], part, n, p) for (way, part), p in pairs.items()]


def _row(
    model: str, way: str, geometry: str, part: str, n_tokens: int, pairs: list[tuple[float, float]]
) -> Row:
    measured, flow = torch.tensor(pairs, dtype=torch.float64).T
    clear = measured.abs() > TURN
    signs = measured[clear].sign()
    most = int(max((signs > 0).sum(), (signs < 0).sum())) if len(signs) else 0
    return Row(
        model=model,
        way=way,
        geometry=geometry,
        part=part,
        n_tokens=n_tokens,
        n=len(pairs),
        correlation=torch.corrcoef(torch.stack([measured, flow]))[0, 1].item(),
        mean_error=(measured - flow).abs().mean().item(),
        mean_size=measured.abs().mean().item(),
        n_clear=int(clear.sum()),
        n_right=int((flow[clear].sign() == signs).sum()),
        n_majority=most,
    )


if __name__ == "__main__":
    main()
