"""Claims 1 and 2: what the flow of random systems does, with and without theorems' hypotheses.

Enters: a bench. Leaves: outcomes. Systems are V = A^-1 W with sym(W) > 0 and A of chosen signs, as
in arXiv 2512.03058; tokens are Gaussian, and everything is integrated in float64.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.flows.examples import random_antisymmetric, random_definite
from orbitlens.flows.integrate import IntegrateOptions, integrate_flow
from orbitlens.flows.outcome import Fate, fate, log_sizes
from orbitlens.flows.system import Mask, System, system_of_maps
from orbitlens.trajectory import Trajectory
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome

N_TOKENS = 8
LONG = 60.0  # by then a definite system has made up its mind
SHORT = 2.0  # a few layers: before the growing directions have swallowed the rest
VERY_LONG = 1000.0  # over which the exponent of a decay is fitted
SMALL = math.log(1e-6)  # below, the integrator's absolute tolerance shows
LOOSE = IntegrateOptions(n_saved=9, max_steps=2_000)
TIGHT = IntegrateOptions(n_saved=65, rtol=1e-10, max_steps=50_000)


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A random system and its tokens."""

    system: System
    tokens: Tokens
    alignment: Tensor  # A = W V^-1


def draws(
    bench: Bench,
    name: str,
    positive: float,
    *,
    twist: float = 0.0,
    even: bool = False,
    n: int = 0,
) -> Iterator[Draw]:
    """Go through random systems; `positive` is the share of A's eigenvalues above zero.

    `twist` is the size of antisymmetric parts added to W and A; 0: none, all hypotheses hold.
    """
    count = n or bench.pick(15, 100, 500)
    for seed in bench.seeds:
        generator = bench.generator(name, seed)
        for k in range(count):
            d = 2 + 2 * (k % 2) if even else 2 + k % 3
            signs = -torch.ones(d, dtype=torch.float64)
            signs[: round(d * positive)] = 1.0
            system = twisted(d, signs, twist, generator)
            tokens = torch.randn(N_TOKENS, d, generator=generator, dtype=torch.float64)
            yield Draw(system=system, tokens=tokens, alignment=alignment_of(system))


def twisted(d: int, signs: Tensor, twist: float, generator: torch.Generator) -> System:
    """Return V = A^-1 W with sym(W) > 0, sym(A) of the given signs, and antisymmetric parts."""
    w = random_definite(d, torch.ones(d, dtype=torch.float64), generator)
    a = random_definite(d, signs, generator)
    w, a = (m + twist * random_antisymmetric(d, generator) for m in (w, a))
    return system_of_maps(w, torch.linalg.solve(a, w))


def alignment_of(system: System) -> Tensor:
    """Return A = W V^-1 of a system of full maps with one head."""
    return system.w_q[0] @ torch.linalg.inv(system.w_o[0].T)


def long_fate(draw: Draw, *, mask: Mask = Mask.FULL, until: float = LONG) -> Fate:
    """Return where the size of the cloud went."""
    return fate(
        integrate_flow(replace(draw.system, mask=mask), draw.tokens, until=until, options=LOOSE)
    )


# --- claim 1: regimes ------------------------------------------------------------------------


def diverges(bench: Bench) -> Outcome:
    """1a: how often an aligned cloud grows without end; control: A with its sign turned."""
    return _regime(bench, Fate.DIVERGING, 1.0)


def converges(bench: Bench) -> Outcome:
    """1c: how often an anti-aligned cloud shrinks; control: A with its sign turned."""
    return _regime(bench, Fate.CONVERGING, 0.0)


def _regime(bench: Bench, wanted: Fate, positive: float) -> Outcome:
    fates = Counter(long_fate(draw) for draw in draws(bench, "regime", positive))
    bench.step(0.5)
    turned = Counter(long_fate(draw) for draw in draws(bench, "regime", 1.0 - positive))
    return Outcome(
        result=estimate.share(fates[wanted], fates.total(), of="systems"),
        control=estimate.share(turned[wanted], turned.total(), of="systems"),
        data={"fates": _plain(fates), "fates_turned": _plain(turned)},
    )


def _plain(fates: Counter[Fate]) -> dict[str, int]:
    return {kind.value: fates[kind] for kind in Fate}


def worst_pair_drop(system: System, tokens: Tokens, form: Tensor, *, until: float = 3.0) -> float:
    """Return the largest fall of a pair's (x_i - x_k)^T A (x_i - x_k) between saved moments.

    It is relative to the largest pair at that moment; T1 says that nothing falls.
    """
    x = integrate_flow(system, tokens, until=until, options=TIGHT).tokens
    pairs = x[:, :, None] - x[:, None]
    sizes = torch.einsum("tijd,de,tije->tij", pairs, form, pairs)
    falls = (sizes[:-1] - sizes[1:]).amax(dim=(1, 2)) / sizes[:-1].abs().amax(dim=(1, 2))
    return float(falls.max())


def pairs_never_shrink(bench: Bench) -> Outcome:
    """1b: the worst fall of an A-distance of a pair; control: a causal mask, which voids T1."""
    n = bench.pick(8, 40, 200)
    plain, causal, euclid = [], [], []
    for draw in draws(bench, "pairs", 1.0, n=n):
        eye = torch.eye(len(draw.alignment), dtype=torch.float64)
        masked = replace(draw.system, mask=Mask.CAUSAL)
        plain.append(worst_pair_drop(draw.system, draw.tokens, draw.alignment))
        causal.append(worst_pair_drop(masked, draw.tokens, draw.alignment))
        euclid.append(worst_pair_drop(draw.system, draw.tokens, eye))
    return Outcome(
        result=estimate.largest(plain, of="systems"),
        control=estimate.largest(causal, of="systems"),
        data={
            "falls": {"full": plain, "causal": causal, "euclidean": euclid},
            "euclidean_shrinks": sum(value > 1e-6 for value in euclid) / len(euclid),
            "causal_shrinks": sum(value > 1e-6 for value in causal) / len(causal),
        },
    )


def euclidean_pairs(bench: Bench) -> Outcome:
    """1f: how often some plain distance shrinks although A is positive definite."""
    falls = []
    for draw in draws(bench, "pairs", 1.0, n=bench.pick(8, 40, 200)):
        eye = torch.eye(len(draw.alignment), dtype=torch.float64)
        falls.append(worst_pair_drop(draw.system, draw.tokens, eye))
    kept = sum(value <= 1e-6 for value in falls)
    return Outcome(result=estimate.share(kept, len(falls), of="systems"))


@dataclass(frozen=True, kw_only=True)
class Decay:
    """The size of the largest token over time, and the exponent fitted to its tail."""

    times: list[float]
    log_sizes: list[float]
    exponent: float


def decay(system: System, tokens: Tokens) -> Decay:
    """Return d ln size / d ln t by least squares over the last tenth of a decade that counts."""
    options = IntegrateOptions(n_saved=1025, rtol=1e-8, max_steps=100_000)
    trajectory = integrate_flow(system, tokens, until=VERY_LONG, options=options)
    sizes = log_sizes(trajectory.unit_tokens, trajectory.log_scale)
    sizes = sizes - sizes[0]
    counts = (sizes > SMALL).nonzero()[:, 0]
    end = float(trajectory.times[counts[-1]])
    tail = (trajectory.times >= end / 10) & (trajectory.times <= end)
    logs = trajectory.times[tail].log()
    centred = logs - logs.mean()
    exponent = float((centred * sizes[tail]).sum() / centred.square().sum())
    kept = _spaced(trajectory)
    return Decay(
        times=trajectory.times[kept].tolist(), log_sizes=sizes[kept].tolist(), exponent=exponent
    )


def _spaced(trajectory: Trajectory) -> Tensor:
    """Return some forty moments, evenly spaced on a logarithmic axis."""
    last = len(trajectory.times) - 1
    wanted = torch.logspace(0, math.log10(last), 40, dtype=torch.float64).round().long()
    return wanted.unique()


def decay_exponent(bench: Bench) -> Outcome:
    """1d: how far the exponent of the decay is from -1/2; control: a causal mask (exponential)."""
    n = bench.pick(6, 40, 200)
    plain, causal = [], []
    for draw in draws(bench, "decay", 0.0, n=n):
        plain.append(decay(draw.system, draw.tokens))
        causal.append(decay(replace(draw.system, mask=Mask.CAUSAL), draw.tokens))
    return Outcome(
        result=estimate.mean([abs(d.exponent + 0.5) for d in plain], of="systems"),
        control=estimate.mean([abs(d.exponent + 0.5) for d in causal], of="systems"),
        data={
            "exponents": [d.exponent for d in plain],
            "exponents_causal": [d.exponent for d in causal],
            "curves": [_curve(d) for d in plain[:12]],
            "curves_causal": [_curve(d) for d in causal[:12]],
        },
    )


def _curve(decay: Decay) -> dict[str, list[float]]:
    return {
        "t": [round(t, 3) for t in decay.times],
        "log_size": [round(size, 3) for size in decay.log_sizes],
    }


def stretch(system: System, tokens: Tokens, *, until: float = SHORT) -> tuple[float, float]:
    """Return the smallest and largest log-change of the cloud's variance over all directions.

    They are ln of the generalised eigenvalues of the covariance at the end against the start.
    """
    trajectory = integrate_flow(system, tokens, until=until, options=LOOSE)
    start, end = (_covariance(x) for x in (trajectory.unit_tokens[0], trajectory.unit_tokens[-1]))
    inverse = torch.linalg.inv(torch.linalg.cholesky(start))
    values = torch.linalg.eigvalsh(inverse @ end @ inverse.T).clamp(min=1e-300).log()
    values = values + 2 * trajectory.log_scale[-1]
    return float(values[0]), float(values[-1])


def _covariance(x: Tokens) -> Tensor:
    centred = x - x.mean(dim=0)
    return centred.T @ centred


def mixed_at_first(bench: Bench) -> Outcome:
    """1e: how often an indefinite cloud grows along one way and shrinks along another.

    Control: A with all eigenvalues positive.
    """
    counts = {}
    for name, positive in (("indefinite", 0.5), ("positive", 1.0), ("negative", 0.0)):
        ways = [stretch(draw.system, draw.tokens) for draw in draws(bench, "mixed", positive)]
        counts[name] = (sum(low < 0 < high for low, high in ways), len(ways))
    return Outcome(
        result=estimate.share(*counts["indefinite"], of="systems"),
        control=estimate.share(*counts["positive"], of="systems"),
        data={
            "mixed": {name: hit / n for name, (hit, n) in counts.items()},
            "map": phase_points(bench),
        },
    )


def phase_points(bench: Bench) -> list[dict[str, float | str]]:
    """Return systems in the plane with eigenvalues of A all over it, and what became of each."""
    generator = bench.generator("phase map")
    points: list[dict[str, float | str]] = []
    for _ in range(bench.pick(60, 700, 2000)):
        pair = 3.0 * torch.rand(2, generator=generator, dtype=torch.float64) - 1.5
        pair = torch.where(pair.abs() < 0.08, 0.08 * pair.sign(), pair)
        w = random_definite(2, torch.ones(2, dtype=torch.float64), generator)
        turn, _ = torch.linalg.qr(torch.randn(2, 2, generator=generator, dtype=torch.float64))
        a = (turn * pair) @ turn.T
        tokens = torch.randn(N_TOKENS, 2, generator=generator, dtype=torch.float64)
        system = system_of_maps(w, torch.linalg.solve(a, w))
        low, high = stretch(system, tokens)
        kind = "both" if low < 0 < high else ("grows" if low >= 0 else "shrinks")
        draw = Draw(system=system, tokens=tokens, alignment=a)
        points.append(
            {
                "a": round(float(pair[0]), 3),
                "b": round(float(pair[1]), 3),
                "first": kind,
                "fate": long_fate(draw, until=30.0).value,
            }
        )
    return points


def mixed_for_good(bench: Bench) -> Outcome:
    """1g: how often an indefinite cloud still neither grows nor shrinks after a long time."""
    fates = Counter(long_fate(draw) for draw in draws(bench, "mixed", 0.5))
    return Outcome(
        result=estimate.share(fates[Fate.MIXED], fates.total(), of="systems"),
        data={"fates": _plain(fates)},
    )


# --- claim 2: conditions ---------------------------------------------------------------------


TWISTS = (0.0, 1.0, 2.0, 4.0, 8.0)
STRONG = 4.0  # antisymmetric parts this many times as large as those of a random matrix


@dataclass(frozen=True, kw_only=True)
class Rule:
    """How often the sign of sym(A) was right about the fate, and its opposite."""

    twist: float
    mask: Mask
    right: int
    opposite: int
    n: int

    def row(self) -> dict[str, float | str]:
        """Return it as plain data."""
        share = estimate.share(self.right, self.n, of="systems")
        return {
            "twist": self.twist, "mask": self.mask.value, "share": share.value,
            "low": share.low, "high": share.high, "n": self.n,
        }  # fmt: skip


def sign_rule(bench: Bench, twist: float, mask: Mask, n: int = 0) -> Rule:
    """Return how often sign and fate agree, over positive and negative definite systems."""
    right = opposite = total = 0
    for positive, wanted in ((1.0, Fate.DIVERGING), (0.0, Fate.CONVERGING)):
        other = Fate.CONVERGING if wanted is Fate.DIVERGING else Fate.DIVERGING
        systems = draws(bench, f"signs {positive} {twist}", positive, twist=twist, n=n)
        fates = Counter(long_fate(draw, mask=mask) for draw in systems)
        right, opposite = right + fates[wanted], opposite + fates[other]
        total += fates.total()
    return Rule(twist=twist, mask=mask, right=right, opposite=opposite, n=total)


def conditions(bench: Bench, *, twist: float, mask: Mask) -> Outcome:
    """2: how often the sign of sym(A) predicts the fate; control: the sign of -A."""
    rule = sign_rule(bench, twist, mask)
    return Outcome(
        result=estimate.share(rule.right, rule.n, of="systems"),
        control=estimate.share(rule.opposite, rule.n, of="systems"),
    )


def by_twist(bench: Bench) -> Outcome:
    """2b: the sign rule on strongly twisted systems, and the way there, with both masks."""
    rules = []
    twists = bench.pick((0.0, STRONG), TWISTS, TWISTS)
    for number, twist in enumerate(twists):
        for mask in Mask:
            rules.append(sign_rule(bench, twist, mask, bench.pick(4, 40, 400)))
        bench.step((number + 1) / len(twists))
    strong = next(r for r in rules if r.twist == STRONG and r.mask is Mask.FULL)
    return Outcome(
        result=estimate.share(strong.right, strong.n, of="systems"),
        control=estimate.share(strong.opposite, strong.n, of="systems"),
        data={"rows": [rule.row() for rule in rules]},
    )
