"""Claims 3 and 4a: what absolute and rotary encodings do to the flow of random systems.

Enters: a bench. Leaves: outcomes. Systems are those of `flows.py`.
"""

from dataclasses import replace

import torch

from orbitlens._types import Tokens
from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.integrate import integrate_flow
from orbitlens.flows.system import System
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.token_dynamics.flows import (
    LOOSE,
    Draw,
    draws,
    long_fate,
    worst_pair_drop,
)

# --- claim 3: absolute encodings -------------------------------------------------------------


def with_positions(draw: Draw, generator: torch.Generator, *, reinjected: bool) -> System:
    """Return the system with random absolute encodings of about the tokens' size."""
    points = torch.randn(draw.tokens.shape, generator=generator, dtype=torch.float64)
    return replace(draw.system, positions=points, reinjected=reinjected)


def input_keeps_regime(bench: Bench) -> Outcome:
    """3a: how often encodings added at the input leave the regime; control: re-injected ones."""
    counts = {"input": 0, "reinjected": 0}
    n = 0
    for positive in (1.0, 0.0):
        generator = bench.generator("points", round(positive))
        for draw in draws(bench, "absolute", positive, n=bench.pick(10, 50, 300)):
            before = long_fate(draw)
            n += 1
            for name in counts:
                system = with_positions(draw, generator, reinjected=name == "reinjected")
                after = long_fate(replace(draw, system=system))
                counts[name] += after is before
    return Outcome(
        result=estimate.share(counts["input"], n, of="systems"),
        control=estimate.share(counts["reinjected"], n, of="systems"),
    )


def reinjected_limit(bench: Bench) -> Outcome:
    """3b: how far tokens end from -p_i, relative to p; control: p added at the input only."""
    gaps: dict[str, list[float]] = {"input": [], "reinjected": []}
    apart: dict[str, list[float]] = {"input": [], "reinjected": []}
    generator = bench.generator("limit")
    for draw in draws(bench, "limit", 0.0, n=bench.pick(8, 40, 200)):
        for name in gaps:
            system = with_positions(draw, generator, reinjected=name == "reinjected")
            points = system.positions
            assert points is not None
            end = integrate_flow(system, draw.tokens, until=5000.0, options=LOOSE).final
            size = points.norm(dim=-1).max()
            gaps[name].append(float((end + points).norm(dim=-1).max() / size))
            apart[name].append(_spread(end) / _spread(points))
    return Outcome(
        result=estimate.mean(gaps["reinjected"], of="systems"),
        control=estimate.mean(gaps["input"], of="systems"),
        data={"gaps": gaps, "apart": apart},
    )


def _spread(x: Tokens) -> float:
    return float((x - x.mean(dim=0)).norm())


# --- claim 4a: rotary encodings void the theorem ---------------------------------------------


def rotary_voids(bench: Bench) -> Outcome:
    """4a: how often some A-distance shrinks once a rotary encoding is on; control: without one."""
    hits = {"rotary": 0, "none": 0}
    n = 0
    for draw in draws(bench, "void", 1.0, even=True, n=bench.pick(8, 40, 200)):
        d = draw.tokens.shape[1]
        spec = RotarySpec(base=20.0, d_rotary=d, d_head=d, pairing=Pairing.HALVES)
        n += 1
        for name, system in (("rotary", replace(draw.system, rotary=spec)), ("none", draw.system)):
            hits[name] += worst_pair_drop(system, draw.tokens, draw.alignment) > 1e-6
    return Outcome(
        result=estimate.share(hits["rotary"], n, of="systems"),
        control=estimate.share(hits["none"], n, of="systems"),
    )
