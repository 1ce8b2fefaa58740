"""Forecasts of untrained stacks against stacks that are built: the table of docs/forecast.md.

    python benchmarks/forecast.py [--out docs/forecast-stacks.json]

At least a hundred stacks: pre-, post- and peri-norm, 4 to 64 layers, five first weights, four
encodings, gated and plain MLPs, drawn by a seed. The mean cosine of a single model of this width
strays by some hundredths, so models of each are built, eight at a time, until the standard error of
their mean is below `SURE` in every layer, or `MOST` are built; forecasts are means of as many
draws. Gradients are those of the first eight. Rows are written as they come; a stack that is in the
file, with as many models as the rule asks for, is left alone.
"""

import argparse
import itertools
import json
import math
import random
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from orbitlens.forecasting.api import forecast
from orbitlens.forecasting.blueprint import Blueprint
from orbitlens.forecasting.built import built_cosines, built_course

NORMS, INITS = ("pre", "post", "peri"), (0.01, 0.02, 0.05, 0.1, 0.2)
LAYERS = (4, 8, 16, 32, 64)
POSITIONS, ACTIVATIONS = ("none", "learned", "rotary", "alibi"), ("gelu", "swiglu")
N_STACKS = 105
AT_ONCE, MOST, SURE = 8, 200, 0.01  # models built; standard error of a mean cosine


def stacks():
    """Return the stacks: every norm with every first weight, seven times, other switches drawn."""
    rng = random.Random(0)
    for norm, init, _ in itertools.product(NORMS, INITS, range(N_STACKS // 15)):
        yield Blueprint(
            layers=rng.choice(LAYERS),
            width=128,
            heads=rng.choice((2, 4, 8)),
            norm=norm,
            init=init,
            position=rng.choice(POSITIONS),
            activation=rng.choice(ACTIVATIONS),
            mask=rng.choice(("causal", "causal", "full")),
            context=32,
            vocabulary=500,
        )


def error_of(courses):
    """Return the standard error of the mean cosine in the layer where it is largest."""
    return float(np.std(courses, axis=0, ddof=1).max() / math.sqrt(len(courses)))


def more_cosines(plan, courses):
    """Return mean cosines of as many models as the rule asks for; some are there already."""
    while error_of(courses) >= SURE and len(courses) < MOST:
        courses = [*courses, *(built_cosines(plan, len(courses) + k) for k in range(AT_ONCE))]
    return courses


def row(plan):
    started = time.process_time()
    runs = [forecast(plan, seed=seed) for seed in range(AT_ONCE)]
    cost = (time.process_time() - started) / AT_ONCE
    models = [built_course(plan, seed) for seed in range(AT_ONCE)]
    courses = more_cosines(plan, [run.cosines for run in models])
    ratios = [run.gradient for run in models]
    told = np.mean([math.log(run.depths[0].gradient) for run in runs])
    runs += [forecast(plan, seed=seed, advise=False) for seed in range(AT_ONCE, len(courses))]
    found = np.mean([[each.cosine for each in run.depths] for run in runs], axis=0)
    truth = np.mean(courses, axis=0)
    return {
        "plan": {key: value for key, value in asdict(plan).items() if value is not None},
        "models": len(courses),
        "error": float(np.abs(found - truth).max()),
        "spread": error_of(courses),
        "last": [float(found[-1]), float(truth[-1])],
        "gradient": [math.exp(told), math.exp(float(np.mean(np.log(ratios))))],
        "milliseconds": 1000 * cost,
    }


def follows_the_rule(found):
    return found["spread"] < SURE or found["models"] >= MOST


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("docs/forecast-stacks.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(options.out.read_text()) if options.out.exists() else []
    for number, plan in enumerate(stacks()):
        if number < len(done) and follows_the_rule(done[number]):
            continue
        done[number : number + 1] = [row(plan)]
        options.out.write_text(json.dumps(done, indent=None, separators=(",", ":")) + "\n")
    errors = [each["error"] for each in done]
    factors = [abs(math.log2(a / b)) for a, b in (each["gradient"] for each in done)]
    near, even = sum(e <= 0.05 for e in errors), sum(f <= 1 for f in factors)
    print(f"{len(done)} stacks: C within 0.05 in every layer of {near}, largest {max(errors):.3f}")
    print(f"gradients within a factor of 2 in {even}")


if __name__ == "__main__":
    main()
