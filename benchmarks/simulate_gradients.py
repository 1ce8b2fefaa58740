"""What a gradient of a flow costs, in units of the flow: by size, and by who computes it.

    python benchmarks/simulate_gradients.py [--quick] [--json FILE]

The flow is `integrate_flow` at the same tolerance and with nothing kept; the gradient is that of a
loss with respect to the start and to all weights, the flow itself included. Processor time, the
least of several repeats.
"""

import argparse
import json
import os
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _timing import machine, time_in_turns
from simulate_cost import random_system

from orbitlens.flows.gradients import simulate_with_gradients
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.system import Geometry, System

GOAL = 4.0  # times a flow
RTOL = 1e-6
NAMES = ("w_q", "w_k", "w_v", "w_o")
# Tokens, width, heads, width of a head, causal.
SIZES = (
    (64, 2, 1, 2, False),
    (128, 64, 8, 8, False),
    (256, 64, 1, 64, False),
    (256, 64, 1, 64, True),
)


def flow(system: System, x: torch.Tensor) -> torch.Tensor:
    options = IntegrateOptions(rtol=RTOL, n_saved=2)
    return integrate_flow(system, x, until=2.0, options=options).final


def gradient(system: System, x: torch.Tensor) -> torch.Tensor:
    weights = {name: getattr(system, name).clone().requires_grad_(True) for name in NAMES}
    start = x.clone().requires_grad_(True)
    moving = replace(system, **weights)
    end = simulate_with_gradients(moving, start, until=2.0, rtol=RTOL)
    end.square().sum().backward()
    return start.grad


def measure(size: tuple[int, int, int, int, bool], repeats: int) -> dict[str, object]:
    n, d, heads, r, causal = size
    system = replace(random_system(d, heads, r, causal=causal), geometry=Geometry.SPHERE)
    x = torch.randn(n, d, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    jobs = {"flow": lambda: flow(system, x), "gradient": lambda: gradient(system, x)}
    times = {name: time.cpu for name, time in time_in_turns(jobs, repeats=repeats).items()}
    what = f"{n} tokens, d = {d}, {heads} heads of {r}" + (", causal" if causal else "")
    return {"what": what, **times, "ratio": times["gradient"] / times["flow"], "goal": GOAL}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few tokens: does it run?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    arguments = parser.parse_args()
    about, rows = machine(), []
    for size in SIZES:
        size = (min(size[0], 24), *size[1:]) if arguments.quick else size
        rows.append(measure(size, 1 if arguments.quick else 2))
        row = rows[-1]
        word = "met" if row["ratio"] <= GOAL else "MISSED"
        print(
            f"{row['what']}: flow {1e3 * row['flow']:.1f} ms, gradient {1e3 * row['gradient']:.1f} "
            f"ms: {row['ratio']:.2f} times; goal {GOAL:g}: {word}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "rows": rows}, indent=1))
    return 0 if arguments.quick or all(row["ratio"] <= GOAL for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
