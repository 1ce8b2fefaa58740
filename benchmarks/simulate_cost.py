"""What one evaluation of the flow costs, against tokens, width, heads and seeds: a picture.

    python benchmarks/simulate_cost.py [--quick] [--plot FILE.png] [--json FILE]

Times are the least of several repeats. Tokens go up to 16,384; peak memory is read after each, in a
process of its own, and must grow with the tokens, not with their pairs.
"""

import argparse
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import torch
from _timing import machine, time_in_turns

from orbitlens.flows.ensemble import simulate_ensemble
from orbitlens.flows.examples import example_system
from orbitlens.flows.fields import AttentionField
from orbitlens.flows.integrate import IntegrateOptions
from orbitlens.flows.system import Geometry, Mask, System

TOKENS = (64, 256, 1024, 4096, 16384)
WIDTHS = (2, 8, 32, 128, 512)
HEADS = (1, 2, 4, 8, 16)
SEEDS = (1, 4, 16, 64, 256)
TABLE = "a table of all pairs"


def random_system(d: int, n_heads: int, d_head: int, *, causal: bool = False) -> System:
    generator = torch.Generator().manual_seed(0)
    shapes = [(n_heads, d, d_head)] * 3 + [(n_heads, d_head, d)]
    w = [torch.randn(s, generator=generator, dtype=torch.float64) / s[1] ** 0.5 for s in shapes]
    mask = Mask.CAUSAL if causal else Mask.FULL
    return System(w_q=w[0] / d_head**0.5, w_k=w[1], w_v=w[2], w_o=w[3], mask=mask)


def seconds(system: System, n: int) -> float:
    field = AttentionField(system, n, compiled=True)
    x = torch.randn(n, system.d_model, dtype=torch.float64)
    repeats = 20 if n <= 1024 else 3
    return time_in_turns({"it": lambda: field(x)}, repeats=repeats)["it"].wall


def memory(n: int, d_head: int) -> float:
    """Return by how many bytes an evaluation of n tokens raises a process's peak memory."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import simulate_cost as c\n"
        "from orbitlens.running.info import peak_rss_bytes as peak\n"
        "system = c.random_system(64, 1, int(sys.argv[3]), causal=True)\n"
        "c.evaluate(system, 64); before = peak()\n"
        "c.evaluate(system, int(sys.argv[2])); print(peak() - before)"
    )
    here = str(Path(__file__).parent)
    command = [sys.executable, "-c", code, here, str(n), str(d_head)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def evaluate(system: System, n: int) -> None:
    AttentionField(system, n, compiled=True)(torch.randn(n, system.d_model, dtype=torch.float64))


def ensemble_seconds(n_systems: int) -> float:
    system = replace(example_system("aligned", d_model=3), geometry=Geometry.SPHERE, beta=4.0)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(n_systems, 64, 3, dtype=torch.float64, generator=generator)
    options = IntegrateOptions(rtol=1e-6)

    def run() -> object:
        return simulate_ensemble([system] * n_systems, tokens, until=10.0, options=options)

    return time_in_turns({"it": run}, repeats=2)["it"].wall


def measure(*, quick: bool) -> dict[str, dict[str, list[float]]]:
    tokens = TOKENS[:3] if quick else TOKENS
    narrow, wide = random_system(64, 1, 8), random_system(64, 1, 64)
    return {
        "tokens": {
            "at": list(tokens),
            "a head of 8": [seconds(narrow, n) for n in tokens],
            "a head of 64": [seconds(wide, n) for n in tokens],
            "a causal head of 64": [seconds(replace(wide, mask=Mask.CAUSAL), n) for n in tokens],
        },
        "width": {
            "at": list(WIDTHS),
            "512 tokens, one head as wide as they": [
                seconds(random_system(d, 1, d), 512) for d in WIDTHS
            ],
        },
        "heads": {
            "at": list(HEADS),
            "512 tokens, d = 64, heads of 64 / h": [
                seconds(random_system(64, h, 64 // h), 512) for h in HEADS
            ],
        },
        "systems": {
            "at": list(SEEDS[:3] if quick else SEEDS),
            "64 tokens on the sphere, d = 3, t = 10": [
                ensemble_seconds(k) for k in (SEEDS[:3] if quick else SEEDS)
            ],
        },
        "memory": {
            "at": list(tokens),
            "a causal head of 8": [memory(n, 8) for n in tokens],
            "a causal head of 64": [memory(n, 64) for n in tokens],
            TABLE: [8.0 * n * n for n in tokens],
        },
    }


def draw(found: dict[str, dict[str, list[float]]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 3, figsize=(11, 6.4), layout="constrained")
    axes = grid.ravel()
    axes[5].set_axis_off()
    for axis, (name, lines) in zip(axes[:5], found.items(), strict=True):
        at = lines["at"]
        for label, values in lines.items():
            if label != "at":
                style = "--" if "pairs" in label else "o-"
                axis.loglog(at, values, style, label=label, markersize=4)
        axis.set_title(f"against {name}" if name != "memory" else "memory against tokens")
        axis.set_xticks(at, [f"{v:g}" for v in at], minor=False)
        axis.minorticks_off()
        low, high = (math.log10(value) for value in axis.get_ylim())
        axis.set_ylim(10 ** math.floor(low), 10 ** math.ceil(high))  # whole decades have labels
        axis.set_xlabel({"memory": "tokens"}.get(name, name))
        axis.grid(alpha=0.25)
        axis.legend(fontsize=7, frameon=False)
        axis.spines[["top", "right"]].set_visible(False)
    for axis in axes[:3]:
        axis.set_ylabel("seconds (one evaluation)")
    axes[3].set_ylabel("seconds (the whole ensemble)")
    axes[4].set_ylabel("bytes above start-up")
    figure.savefig(path, dpi=110)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few tokens: does it run?")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw it (needs matplotlib)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the numbers")
    arguments = parser.parse_args()
    about, found = machine(), measure(quick=arguments.quick)
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for name, lines in found.items():
        for label, values in lines.items():
            if label != "at":
                pairs = zip(lines["at"], values, strict=True)
                print(f"{name}: {label}: " + ", ".join(f"{a:g}: {v:.2g}" for a, v in pairs))
    if arguments.json:
        arguments.json.write_text(json.dumps({"about": about, "found": found}, indent=1))
    if arguments.plot:
        draw(found, arguments.plot)
    grown = found["memory"]["a causal head of 64"]
    return (
        0 if arguments.quick or grown[-1] < 0.2 * found["memory"]["a table of all pairs"][-1] else 1
    )


if __name__ == "__main__":
    sys.exit(main())
