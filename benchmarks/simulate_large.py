"""One evaluation of very many tokens: its time, its memory, and its error on some of them.

    python benchmarks/simulate_large.py [--tokens N] [--json FILE]

One head of two coordinates, by mask. The error is that of a few tokens against sums over everyone
they see, written out in NumPy from the definition. Each mask is a process of its own, so that peak
memory is its own.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from _timing import machine, time_once
from simulate_cost import random_system

from orbitlens.flows.fields import make_field
from orbitlens.flows.system import Mask, System
from orbitlens.running.info import peak_rss_bytes

MASKS = {
    "full": {},
    "causal": {"mask": Mask.CAUSAL},
    "causal, window of 4,096": {"mask": Mask.CAUSAL, "window": 4096},
}
SAMPLED = 5


def exact_flow(system: System, x: np.ndarray, i: int) -> np.ndarray:
    """Return the flow of token i, from the definition."""
    low = 0 if system.window is None else max(0, i - system.window + 1)
    seen = x[low : i + 1] if system.mask is Mask.CAUSAL else x
    total = np.zeros(x.shape[1])
    for w_q, w_k, w_v, w_o in zip(
        *(w.numpy() for w in (system.w_q, system.w_k, system.w_v, system.w_o)), strict=True
    ):
        scores = system.beta * (seen @ w_k @ (x[i] @ w_q))
        weights = np.exp(scores - scores.max())
        total += (weights / weights.sum()) @ seen @ w_v @ w_o
    return total


def measure(name: str, n: int) -> dict[str, object]:
    system = replace(random_system(2, 1, 2), **MASKS[name])
    x = torch.randn(n, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    make_field(system, 64, compiled=True)(x[:64])  # compiles
    before, found = peak_rss_bytes(), []
    field = make_field(system, n, compiled=True)
    time = time_once(lambda: found.append(field(x).numpy()))
    grown = peak_rss_bytes() - before
    sampled = np.linspace(0, n - 1, SAMPLED).astype(int)
    exact = np.stack([exact_flow(system, x.numpy(), int(i)) for i in sampled])
    error = np.abs(found[0][sampled] - exact).max() / np.abs(exact).max()
    what = f"{n:,} tokens, a head of 2, {name}"
    return {"what": what, "cpu": time.cpu, "bytes": grown, "pair_bytes": 8 * n * n, "error": error}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=100_000, metavar="N")
    parser.add_argument("--mask", choices=MASKS, help="this one only, as JSON on stdout")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    arguments = parser.parse_args()
    if arguments.mask:
        print(json.dumps(measure(arguments.mask, arguments.tokens)))
        return 0
    rows = []
    for name in MASKS:
        command = [sys.executable, __file__, "--tokens", str(arguments.tokens), "--mask", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        rows.append(json.loads(done.stdout))
        print(rows[-1], flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": machine(), "rows": rows}, indent=1))
    return 0 if all(row["error"] < 1e-12 and row["bytes"] < 1e9 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
