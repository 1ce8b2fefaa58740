"""What a simulation costs: five problems, ours and its peers, in one run.

    python benchmarks/simulate.py [--quick] [--only P1,P2] [--json FILE] [--without "A;B"]

Every solver gets the loosest tolerance of a fixed ladder that meets the asked accuracy with room to
spare on a seed of its own, the most accurate one where none has room; times and errors are then
taken on five other seeds. The reference is SciPy's DOP853 at 1e-12 with a plain NumPy right-hand
side. A solver that misses the accuracy is shown and does not count. Peers run a 5th- and an
8th-order method where they have both, those of torch with `scaled_dot_product_attention`, which is
never slower for them than a plain softmax; the fastest stands for the peer. The first run
compiles, and is judged, not timed.

Everything runs on one core, so that no solver has more threads than another, and ratios are of
processor time: the clock says nothing on a machine that others use too. Problems that are not run
keep their rows in FILE; each row says when it was measured, and at which load.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_ENABLE_X64", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if hasattr(os, "sched_setaffinity"):  # XLA has no setting for it: its pool is as large as this
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})

import numba
import numpy as np
import torch
from _timing import machine, time_in_turns, time_once
from scipy.integrate import solve_ivp

from orbitlens.flows._fast.lanes import FULL_TERMS, MIDDLE_TERMS, SHORT_TERMS, WIDEST_LANES
from orbitlens.flows._fast.vectors import bundle, lanes, plus, power, put, spread
from orbitlens.flows.ensemble import simulate_ensemble
from orbitlens.flows.fields import AttentionField
from orbitlens.flows.integrate import EVENTS, IntegrateOptions, integrate_flow
from orbitlens.flows.steps import Stop
from orbitlens.flows.system import Geometry, Mask, System, system_of_maps
from orbitlens.heads.rotary import Pairing, RotarySpec
from orbitlens.running._compiled.powers import LANES, power_tables
from orbitlens.running._compiled.tile_vectors import SINGLE as SINGLE_TERMS
from orbitlens.running._compiled.tile_vectors import lanes_of, raise_row, tile_of

LADDER = (1e-5, 3e-6, 1e-6, 3e-7, 1e-7, 3e-8, 1e-8, 3e-9, 1e-9, 3e-10, 1e-10)
SEEDS = (0, 1, 2, 3, 4)
CALIBRATION_SEED = 1000
MARGIN = 0.1  # of the asked accuracy, on the seed that a tolerance is chosen by
SINGLE_MARGIN = 0.5  # in float32 a tenth is within rounding, where no tolerance helps
SLOW, QUICK_RUN = 2.0, 0.05  # seconds; what takes longer is timed once a seed; less, more often
EVERY = 16  # of an ensemble's systems one in so many is compared with the reference
DOUBLE, SINGLE = 1e-6, 1e-5  # relative error that counts as solved, in float64 and float32

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One flow: weights and start of each seed, as arrays that any library can take."""

    name: str
    what: str
    n: int
    d: int
    n_heads: int
    d_head: int
    until: float
    causal: bool = False
    rotary: bool = False
    sphere: bool = False
    n_systems: int = 1  # more than 1: an ensemble, beta from 0.5 to 16
    single: bool = False

    @property
    def accuracy(self) -> float:
        return SINGLE if self.single else DOUBLE

    @property
    def dtype(self) -> type:
        return np.float32 if self.single else np.float64

    def arrays(self, seed: int) -> Arrays:
        """Return w_q, w_k, w_v (heads, d, r), w_o (heads, r, d), x (systems, n, d) and beta."""
        rng = np.random.default_rng(seed)
        h, d, r = self.n_heads, self.d, self.d_head
        x = rng.standard_normal((self.n_systems, self.n, d))
        if d <= 3:  # V a slow spiral in the plane, the identity on the sphere; W = I
            turn = np.array([[0.1, -1.0], [1.0, 0.1]])  # Euler at 0.1 ends 150 % off (seed 0)
            v = turn if not self.sphere else np.eye(d)
            weights = {"w_q": np.eye(d)[None], "w_k": np.eye(d)[None], "w_v": np.eye(d)[None]}
            weights["w_o"] = v.T[None]
        else:
            draw = {"w_q": (h, d, r), "w_k": (h, d, r), "w_v": (h, d, r), "w_o": (h, r, d)}
            weights = {k: rng.standard_normal(s) / math.sqrt(s[1]) for k, s in draw.items()}
            weights["w_q"] /= math.sqrt(r)
            weights["w_o"] *= 0.5 / math.sqrt(h)
        if self.sphere:
            x /= np.linalg.norm(x, axis=-1, keepdims=True)
        beta = np.geomspace(0.5, 16, self.n_systems) if self.n_systems > 1 else np.ones(1)
        found = {**weights, "x": x, "beta": beta, **self.turns()}
        return {key: value.astype(self.dtype) for key, value in found.items()}

    def turns(self) -> Arrays:
        if not self.rotary:
            return {}
        frequencies = 10000.0 ** (-np.arange(0, self.d_head, 2) / self.d_head)
        angles = np.arange(self.n)[:, None] * np.concatenate([frequencies, frequencies])
        return {"cos": np.cos(angles), "sin": np.sin(angles)}


P1 = Problem(
    name="P1",
    what="64 tokens in the plane, a slow spiral",
    n=64,
    d=2,
    n_heads=1,
    d_head=2,
    until=10,
)
P2 = Problem(
    name="P2", what="512 tokens, d = 64, 8 heads of 8", n=512, d=64, n_heads=8, d_head=8, until=5
)
P3 = Problem(
    name="P3", what="2048 tokens, d = 64, a head of 64", n=2048, d=64, n_heads=1, d_head=64, until=2
)
P4 = Problem(
    name="P4",
    what="256 systems of 64 tokens on the sphere, d = 3, beta 0.5 to 16",
    n=64,
    d=3,
    n_heads=1,
    d_head=3,
    until=10,
    sphere=True,
    n_systems=256,
)
P5 = Problem(
    name="P5",
    what="1024 tokens, d = 64, a causal rotary head of 64",
    n=1024,
    d=64,
    n_heads=1,
    d_head=64,
    until=2,
    causal=True,
    rotary=True,
)
P2_SINGLE = replace(P2, name="P2s", what=f"{P2.what}, float32", single=True)
PROBLEMS = (P1, P2, P2_SINGLE, P3, P4, P5)
QUICK = {"P1": 16, "P2": 24, "P2s": 24, "P3": 32, "P4": 8, "P5": 24}  # tokens

# --- right-hand sides, as each library's users would write them ------------------------------


def numpy_field(a: Arrays, problem: Problem, beta: float) -> Callable[[np.ndarray], np.ndarray]:
    half = problem.d_head // 2
    hidden = np.triu(np.full((problem.n, problem.n), -np.inf), 1) if problem.causal else 0.0

    def turned(y: np.ndarray) -> np.ndarray:
        swapped = np.concatenate([-y[..., half:], y[..., :half]], axis=-1)
        return y * a["cos"] + swapped * a["sin"]

    def field(x: np.ndarray) -> np.ndarray:
        q, k, v = x @ a["w_q"], x @ a["w_k"], x @ a["w_v"]
        if problem.rotary:
            q, k = turned(q), turned(k)
        s = beta * (q @ k.transpose(0, 2, 1)) + hidden
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        out = (p @ v @ a["w_o"]).sum(axis=0)
        return out - (out * x).sum(axis=-1, keepdims=True) * x if problem.sphere else out

    return field


def torch_field(a: Arrays, problem: Problem, *, fused: bool) -> Callable:
    """The same in torch; x may have systems in front, with a beta each."""
    t = {key: torch.from_numpy(value) for key, value in a.items()}
    half, beta = problem.d_head // 2, t["beta"][:, None, None, None]
    hidden = torch.full((problem.n, problem.n), -torch.inf, dtype=t["x"].dtype).triu(1)

    def turned(y: torch.Tensor) -> torch.Tensor:
        swapped = torch.cat([-y[..., half:], y[..., :half]], dim=-1)
        return y * t["cos"] + swapped * t["sin"]

    def field(x: torch.Tensor) -> torch.Tensor:
        q, k, v = (x[:, None] @ t[name] for name in ("w_q", "w_k", "w_v"))
        if problem.rotary:
            q, k = turned(q), turned(k)
        q = q * beta
        if fused:
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=problem.causal, scale=1.0
            )
        else:
            s = q @ k.mT
            mixed = torch.softmax(s + hidden if problem.causal else s, dim=-1) @ v
        out = (mixed @ t["w_o"]).sum(dim=1)
        return out - (out * x).sum(dim=-1, keepdim=True) * x if problem.sphere else out

    return field


# --- solvers: (problem, arrays, rtol) -> where all tokens end ---------------------------------

Solver = Callable[[Problem, Arrays, float], Callable[[], np.ndarray]]


def our_system(problem: Problem, a: Arrays, beta: float) -> System:
    w = {key: torch.from_numpy(a[key].astype(np.float64)) for key in ("w_q", "w_k", "w_v", "w_o")}
    if problem.d <= 3:
        system = system_of_maps(torch.eye(problem.d), w["w_o"][0].T)
    else:
        system = System(**w)
    spec = RotarySpec(
        base=1e4, d_rotary=problem.d_head, d_head=problem.d_head, pairing=Pairing.HALVES
    )
    return replace(
        system,
        beta=float(beta),
        mask=Mask.CAUSAL if problem.causal else Mask.FULL,
        rotary=spec if problem.rotary else None,
        geometry=Geometry.SPHERE if problem.sphere else Geometry.FREE,
    )


def ours(problem: Problem, a: Arrays, rtol: float) -> Callable[[], np.ndarray]:
    x = torch.from_numpy(a["x"].astype(np.float64))
    rtol = max(rtol, 1e-6) if problem.single else rtol
    options = IntegrateOptions(rtol=rtol, n_saved=2, single=problem.single)
    systems = [our_system(problem, a, beta) for beta in a["beta"]]
    if problem.n_systems > 1:
        run = lambda: simulate_ensemble(systems, x, until=problem.until, options=options)  # noqa: E731
        return lambda: run().unit_tokens.numpy()

    def solve() -> np.ndarray:
        found = integrate_flow(systems[0], x[0], until=problem.until, options=options)
        if any(event.what == EVENTS[Stop.RAN_AWAY] for event in found.events):
            sys.exit(f"{problem.name}: {EVENTS[Stop.RAN_AWAY]}; the peers cannot follow")
        return found.unit_tokens[-1][None].numpy()

    return solve


def by_scipy(problem: Problem, a: Arrays, rtol: float) -> Callable[[], np.ndarray]:
    def one(index: int) -> np.ndarray:
        field, x = numpy_field(a, problem, float(a["beta"][index])), a["x"][index]
        atol = rtol * np.sqrt(np.mean(x**2))
        found = solve_ivp(
            lambda _, y: field(y.reshape(x.shape)).ravel(),
            (0, problem.until),
            x.ravel(),
            "DOP853",
            t_eval=[problem.until],
            rtol=rtol,
            atol=atol,
        )
        return found.y[:, -1].reshape(x.shape)

    return lambda: np.stack([one(index) for index in range(problem.n_systems)])


def by_torchdiffeq(method: str, *, fused: bool) -> Solver:
    def make(problem: Problem, a: Arrays, rtol: float) -> Callable[[], np.ndarray]:
        from torchdiffeq import odeint

        field, x = torch_field(a, problem, fused=fused), torch.from_numpy(a["x"])
        times = torch.tensor([0.0, problem.until], dtype=x.dtype)
        atol = rtol * x.square().mean().sqrt().item()

        def solve() -> np.ndarray:
            with torch.no_grad():
                found = odeint(lambda _, y: field(y), x, times, method=method, rtol=rtol, atol=atol)
            return found[-1].numpy()

        return solve

    return make


def by_torchode(*, fused: bool) -> Solver:
    def make(problem: Problem, a: Arrays, rtol: float) -> Callable[[], np.ndarray]:
        import torchode

        field, x = torch_field(a, problem, fused=fused), torch.from_numpy(a["x"])
        atol = rtol * x.square().mean().sqrt().item()

        def flat(_: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return field(y.reshape(x.shape)).reshape(y.shape)

        term = torchode.ODETerm(flat)
        solver = torchode.AutoDiffAdjoint(
            torchode.Tsit5(term=term),
            torchode.IntegralController(atol=atol, rtol=rtol, term=term),
        )
        ends = torch.zeros(len(x), dtype=x.dtype), torch.full((len(x),), float(problem.until)).to(x)

        def solve() -> np.ndarray:
            start = torchode.InitialValueProblem(
                y0=x.flatten(1), t_start=ends[0], t_end=ends[1], t_eval=ends[1][:, None]
            )
            with torch.no_grad():
                return solver.solve(start).ys[:, -1].reshape(x.shape).numpy()

        return solve

    return make


def by_diffrax(method: str) -> Solver:
    @cache
    def compiled(problem: Problem) -> Callable:
        """Compile once a problem: weights and tolerances are arguments."""
        import diffrax
        import jax
        import jax.numpy as jnp

        half = problem.d_head // 2

        def turned(y: object, w: dict) -> object:
            return y * w["cos"] + jnp.concatenate([-y[..., half:], y[..., :half]], -1) * w["sin"]

        def field(_: object, x: object, given: tuple) -> object:
            w, beta = given
            q, k, v = x @ w["w_q"], x @ w["w_k"], x @ w["w_v"]
            if problem.rotary:
                q, k = turned(q, w), turned(k, w)
            s = beta * (q @ k.transpose(0, 2, 1))
            if problem.causal:
                s = jnp.where(jnp.tril(jnp.ones(s.shape[-2:], bool)), s, -jnp.inf)
            out = (jax.nn.softmax(s, axis=-1) @ v @ w["w_o"]).sum(axis=0)
            return out - (out * x).sum(-1, keepdims=True) * x if problem.sphere else out

        def one(x: object, beta: object, w: dict, rtol: object, atol: object) -> object:
            return diffrax.diffeqsolve(
                diffrax.ODETerm(field),
                getattr(diffrax, method)(),
                t0=jnp.asarray(0, problem.dtype),
                t1=jnp.asarray(problem.until, problem.dtype),
                dt0=None,
                y0=x,
                args=(w, beta),
                stepsize_controller=diffrax.PIDController(rtol=rtol, atol=atol),
                max_steps=100_000,
                throw=False,
            ).ys[-1]

        if problem.n_systems > 1:
            return jax.jit(jax.vmap(one, in_axes=(0, 0, None, None, None)))
        return jax.jit(lambda x, beta, *rest: one(x[0], beta[0], *rest)[None])

    def make(problem: Problem, a: Arrays, rtol: float) -> Callable[[], np.ndarray]:
        import jax.numpy as jnp

        w = {key: jnp.asarray(value) for key, value in a.items()}
        atol = rtol * float(np.sqrt(np.mean(a["x"] ** 2)))
        given = (
            w.pop("x"),
            w.pop("beta"),
            w,
            *(jnp.asarray(t, problem.dtype) for t in (rtol, atol)),
        )
        run = compiled(problem)
        return lambda: np.asarray(run(*given).block_until_ready())

    return make


SOLVERS: dict[str, Solver] = {
    "orbitlens": ours,
    "SciPy DOP853": by_scipy,
    "torchdiffeq dopri8": by_torchdiffeq("dopri8", fused=True),
    "torchdiffeq dopri5": by_torchdiffeq("dopri5", fused=True),
    "torchdiffeq dopri5, plain softmax": by_torchdiffeq("dopri5", fused=False),
    "torchode Tsit5": by_torchode(fused=True),
    "diffrax Dopri8": by_diffrax("Dopri8"),
    "diffrax Tsit5": by_diffrax("Tsit5"),
}


def euler(problem: Problem, a: Arrays, step: float) -> np.ndarray:
    """People's own loop: `step` is 0.1 in most papers' scripts."""
    field, x = numpy_field(a, problem, 1.0), a["x"][0].copy()
    for _ in range(round(problem.until / step)):
        x = x + step * field(x)
    return x[None]


# --- accuracy and time -----------------------------------------------------------------------


def reference(problem: Problem, seed: int) -> np.ndarray:
    arrays = arrays_of(problem, seed, np.float64)
    for key in ("x", "beta"):
        arrays[key] = arrays[key][::EVERY]
    exact = replace(problem, single=False, n_systems=len(arrays["x"]))
    return by_scipy(exact, arrays, 1e-12)()


def arrays_of(problem: Problem, seed: int, dtype: type) -> Arrays:
    """Return a problem's numbers, rounded as it has them, in another type."""
    return {key: value.astype(dtype) for key, value in problem.arrays(seed).items()}


def error_of(found: np.ndarray, exact: np.ndarray) -> float:
    """Return the largest error of any system, relative to the size of its cloud."""
    found = found[::EVERY]
    if found.shape != exact.shape or not np.isfinite(found).all():
        return math.inf
    wrong = np.linalg.norm((found - exact).reshape(len(exact), -1), axis=1)
    return float((wrong / np.linalg.norm(exact.reshape(len(exact), -1), axis=1)).max())


@dataclass(kw_only=True)
class Result:
    """One solver on one problem."""

    solver: str
    rtol: float | None
    error: float
    wall: float
    cpu: float
    again: float | None = None  # processor time of a run right behind one of its own, if tiny

    def counts(self, accuracy: float) -> bool:
        return self.error <= accuracy


def calibrated(solver: Solver, problem: Problem, exact: np.ndarray) -> float | None:
    """Return the loosest tolerance with a margin to spare, else the most accurate one, if any."""
    arrays = problem.arrays(CALIBRATION_SEED)
    errors = {}
    for rtol in LADDER:
        errors[rtol] = error_of(solver(problem, arrays, rtol)(), exact)
        if errors[rtol] <= (SINGLE_MARGIN if problem.single else MARGIN) * problem.accuracy:
            return rtol
    best = min(errors, key=lambda rtol: errors[rtol])
    return best if errors[best] <= problem.accuracy else None


def judge(result: Result, job: Callable[[], np.ndarray], exact: np.ndarray) -> None:
    result.error = max(result.error, error_of(job(), exact))


def measure(problem: Problem, solvers: dict[str, Solver], repeats: int) -> list[Result]:
    exact = reference(problem, CALIBRATION_SEED)
    tolerances = {name: calibrated(solver, problem, exact) for name, solver in solvers.items()}
    results = {
        name: Result(solver=name, rtol=rtol, error=math.inf if rtol is None else 0, wall=0, cpu=0)
        for name, rtol in tolerances.items()
    }
    for seed in SEEDS:
        exact, arrays = reference(problem, seed), problem.arrays(seed)
        jobs = {
            name: solvers[name](problem, arrays, rtol)
            for name, rtol in tolerances.items()
            if rtol is not None
        }
        for name, job in jobs.items():
            judge(results[name], job, exact)  # compiled now, where it is
        first = {name: time_once(job) for name, job in jobs.items()}
        quick = {name: job for name, job in jobs.items() if first[name].wall < SLOW}
        again = time_in_turns(quick, repeats=repeats - 1, warm_up=False)
        tiny = {name: job for name, job in jobs.items() if first[name].wall < QUICK_RUN}
        at_once: dict[str, float] = {}
        if repeats > 1:  # a few milliseconds: the shortest of few runs would be luck
            again |= time_in_turns(tiny, repeats=10 * repeats, warm_up=False)
            at_once = {name: behind_itself(job, 10 * repeats) for name, job in tiny.items()}
        for name, result in results.items():
            if name in jobs:
                time = first[name].least(again.get(name, first[name]))
                result.wall += time.wall / len(SEEDS)
                result.cpu += time.cpu / len(SEEDS)
            if name in at_once:
                result.again = (result.again or 0.0) + at_once[name] / len(SEEDS)
        print(f"  {problem.name} seed {seed}", file=sys.stderr)
    return list(results.values())


def behind_itself(job: Callable[[], np.ndarray], repeats: int) -> float:
    """Return a run's processor time where the run before it left its code and data in the cache.

    In turns, each run finds there what the others' runs left.
    """
    job()
    return min(time_once(job).cpu for _ in range(repeats))


# --- the machine's own limit -----------------------------------------------------------------


def product_limit(problem: Problem) -> dict[str, float]:
    """Return what one evaluation takes, and the least its products and exponentials would."""
    a = problem.arrays(0)
    system = our_system(problem, a, 1.0)
    field = AttentionField(system, problem.n, compiled=True)
    x = torch.from_numpy(a["x"][0].astype(np.float64))
    q, k, v = (x @ torch.from_numpy(a[w].astype(np.float64)) for w in ("w_q", "w_k", "w_v"))
    s = torch.empty(len(q), problem.n, problem.n, dtype=torch.float64)
    out = torch.empty_like(v)
    times = time_in_turns({"evaluation": lambda: field(x)}, repeats=20)  # torch's threads spin on
    times |= time_in_turns(
        {
            "products": lambda: (torch.matmul(q, k.mT, out=s), torch.matmul(s, v, out=out)),
            "exponentials": lambda: torch.exp(s.clamp_(-1, 1), out=s),
        },
        repeats=20,
    )
    return {name: time.cpu for name, time in times.items()}


def least_time(problem: Problem, rtol: float, cpu: float) -> dict[str, float]:
    """Return what a run's exponentials and products of pairs would take, at the machine's rates.

    Exponentials: pairs that see each other times evaluations, at the rate of powers of two, without
    scores, sums or steps; where W = I both tokens of a pair share one. Products: two of them, 4 n^2
    d_head operations a head (half of it if causal; 3 of 4 if scores are shared), at the rate of a
    product of large square matrices by torch.
    """
    options = IntegrateOptions(
        rtol=max(rtol, 1e-6) if problem.single else rtol, n_saved=2, single=problem.single
    )
    n_evaluations = sum(
        integrate_flow(
            our_system(problem, arrays, beta),
            torch.from_numpy(x.astype(np.float64)),
            until=problem.until,
            options=options,
        ).n_evaluations
        for seed in SEEDS
        for arrays in [problem.arrays(seed)]
        for beta, x in zip(arrays["beta"], arrays["x"], strict=True)
    ) / len(SEEDS)
    half, all_pairs = problem.n * (problem.n + 1) / 2, problem.n**2
    shared = problem.d <= 3  # W = I
    n = n_evaluations * problem.n_heads * (half if problem.causal or shared else all_pairs)
    mixed = n_evaluations * problem.n_heads * (half if problem.causal else all_pairs)
    narrow = problem.d_head <= WIDEST_LANES and not problem.single
    each = seconds_a_power(rtol) if narrow else seconds_a_weight(problem.dtype)
    rate = operations_a_second(problem.dtype)
    found = {"exponentials": n * each, "products": (n + mixed) * 2 * problem.d_head / rate}
    seconds = sum(found.values())
    return {
        "n_evaluations": n_evaluations,
        "n_exponentials": n,
        "nanoseconds": 1e9 * each,
        "gigaflops": rate / 1e9,
        **found,
        "seconds": seconds,
        "share": seconds / cpu,
    }


def operations_a_second(dtype: type, n: int = 1024) -> float:
    """Measure how many operations a second the machine's products of matrices do."""
    x = torch.from_numpy(np.random.default_rng(0).standard_normal((n, n)).astype(dtype))
    out = torch.empty_like(x)
    run = lambda: torch.matmul(x, x, out=out)  # noqa: E731
    return 2 * n**3 / time_in_turns({"product": run}, repeats=30)["product"].cpu


def seconds_a_weight(dtype: type, n: int = 128) -> float:
    """Measure the powers of two that tiles take, from and to the nearest cache."""
    terms = (0,) * (len(FULL_TERMS) if dtype is np.float64 else len(SINGLE_TERMS))
    rows = np.zeros((n, 3 * lanes_of(dtype)), dtype)
    run = lambda: raise_rows(rows, 100, terms)  # noqa: E731
    return time_in_turns({"powers": run}, repeats=30)["powers"].cpu / (100 * rows.size)


@numba.njit(fastmath={"contract"})
def raise_rows(rows, repeats, terms):
    """Raise two to all numbers of some rows, and to what comes out, again and again."""
    nought = tile_of(rows, 0.0, (0, 0, 0), (0,))
    for _ in range(repeats):
        for j in range(rows.shape[0]):
            raise_row(nought, rows, j, nought, terms)


def seconds_a_power(rtol: float, n: int = 2**20) -> float:
    """Measure the powers of two that attention takes, from numbers in the cache."""
    table = power_tables(rtol)[1]
    kinds = (SHORT_TERMS, MIDDLE_TERMS, FULL_TERMS)
    terms = next(kind for kind in kinds if len(kind) + 2 == len(table))
    x = np.random.default_rng(0).uniform(-3, 0, (2, 256))
    out = np.zeros((2, LANES))
    run = lambda: sum_powers(x, table, terms, n // 256, out)  # noqa: E731
    return time_in_turns({"powers": run}, repeats=30)["powers"].cpu / n


@numba.njit(fastmath={"contract"})
def sum_powers(x, table, terms, repeats, out):
    """Sum 2^x over a row of an array, again and again."""
    for _ in range(repeats):
        total = spread(0.0)
        for i in range(0, x.shape[1], LANES):
            total = plus(total, power(lanes(x, 0, i), table, terms))
        put(bundle(out, 0, 0.0, (0, 0)), total, out, 0)


# --- goals and the table ---------------------------------------------------------------------

GOALS: dict[str, list[tuple[str, float]]] = {
    "P1": [("diffrax", 4.0), ("torchdiffeq", 50.0)],
    "P2": [("best peer", 1.5)],
    "P2s": [("diffrax", 2.5), ("torchdiffeq", 2.5)],
    "P3": [("best peer", 1.0)],
    "P4": [("best peer", 5.0)],
    "P5": [("best peer", 2.0)],
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What became of one goal."""

    against: str
    goal: float
    peer: str | None  # the fastest that counts
    ratio: float | None  # its time divided by ours
    met: bool


def outcomes(problem: Problem, results: list[Result]) -> list[Outcome]:
    """Compare with each goal's peers; one that misses the accuracy, ours included, counts not."""
    mine, found = results[0], []
    peers = [r for r in results[1:] if r.rtol is not None and r.counts(problem.accuracy)]
    for against, goal in GOALS[problem.name]:
        fit = [r for r in peers if against == "best peer" or r.solver.startswith(against)]
        best = min(fit, key=lambda r: r.cpu, default=None)
        ratio = None if best is None else best.cpu / mine.cpu
        met = ratio is not None and ratio >= goal and mine.counts(problem.accuracy)
        peer = None if best is None else best.solver
        found.append(Outcome(against=against, goal=goal, peer=peer, ratio=ratio, met=met))
    return found


def show(problem: Problem, results: list[Result]) -> bool:
    """Print one problem's table and its goals; True if all were met."""
    mine = results[0]
    print(f"\n**{problem.name}**: {problem.what}, until t = {problem.until:g}; ", end="")
    print(f"relative error at most {problem.accuracy:g}\n")
    print("| solver | rtol | largest error | processor time | times ours |")
    print("| --- | --- | --- | --- | --- |")
    for result in results:
        if result.rtol is None:
            print(f"| {result.solver} | none | missed on the whole ladder | - | - |")
            continue
        cells = [f"{result.rtol:g}", f"{result.error:.0e}", f"{1e3 * result.cpu:.1f} ms"]
        ratio = "-"
        if mine.rtol is not None:
            ratio = f"{result.cpu / mine.cpu:.2f} ({result.wall / mine.wall:.2f} by the clock)"
        missed = "" if result.counts(problem.accuracy) else " (too inaccurate to count)"
        print(f"| {result.solver} | {' | '.join(cells)} | {ratio}{missed} |")
    met = mine.counts(problem.accuracy)
    if not met:
        print("- orbitlens misses the accuracy: no goal is met.")
        return False
    for outcome in outcomes(problem, results):
        if outcome.ratio is None:
            print(f"- {outcome.against}: none that counts.")
            continue
        met = met and outcome.met
        print(
            f"- against {outcome.against} ({outcome.peer}): {outcome.ratio:.2f} times as fast; "
            f"goal {outcome.goal:g}: {'met' if outcome.met else 'MISSED'}"
        )
        peer = next(result for result in results if result.solver == outcome.peer)
        if peer.again is not None and mine.again is not None:
            print(
                f"- runs of one solver behind each other: {1e3 * mine.again:.2f} and "
                f"{1e3 * peer.again:.2f} ms, {peer.again / mine.again:.2f} times as fast"
            )
    return met


def show_limit(problem: Problem, times: dict[str, float]) -> bool:
    share = times["products"] / times["evaluation"]
    both = (times["products"] + times["exponentials"]) / times["evaluation"]
    goal = 0.65 if problem.name == "P3" else 0.0
    print(
        f"- one evaluation {1e3 * times['evaluation']:.2f} ms; its matrix products alone "
        f"{1e3 * times['products']:.2f} ms ({share:.0%}), with exponentials by torch {both:.0%}"
        + (
            f"; goal {goal:.0%} of the products: {'met' if share >= goal else 'MISSED'}"
            if goal
            else ""
        )
    )
    return share >= goal


def show_least(found: dict[str, float]) -> None:
    print(
        f"- {found['n_exponentials']:.3g} exponentials in {found['n_evaluations']:.0f} evaluations "
        f"at {found['nanoseconds']:.2f} ns take {1e3 * found['exponentials']:.2f} ms, products of "
        f"pairs at {found['gigaflops']:.0f} Gflop/s {1e3 * found['products']:.2f} ms: "
        f"{found['share']:.0%} of the run"
    )


def store(file: Path, about: dict[str, object], rows: list[dict]) -> None:
    """Write the rows; problems that were not run keep those of an earlier run."""
    before = json.loads(file.read_text())["problems"] if file.exists() else []
    found = {row["problem"]["name"]: row for row in [*before, *rows]}
    order = [found[problem.name] for problem in PROBLEMS if problem.name in found]
    file.write_text(json.dumps({"about": about, "problems": order}, indent=1))


def installed(without: list[str]) -> dict[str, Solver]:
    import importlib.util

    module = {"torchdiffeq": "torchdiffeq", "torchode": "torchode", "diffrax": "diffrax"}
    kept = {}
    for name, solver in SOLVERS.items():
        if name in without:
            continue
        needs = module.get(name.split()[0])
        if needs is None or importlib.util.find_spec(needs) is not None:
            kept[name] = solver
        else:
            print(f"{name}: not installed (pip install -e '.[flowbench]')", file=sys.stderr)
    return kept


def main() -> int:
    """Run the problems asked for; 1 if a goal was missed at full size."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    names = ",".join(problem.name for problem in PROBLEMS)
    parser.add_argument("--quick", action="store_true", help="few tokens: does it run?")
    parser.add_argument("--only", default=names, help="some of: %(default)s")
    parser.add_argument(
        "--without", default="", metavar="SOLVERS", help="names to leave out, with ; between them"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results as JSON")
    arguments = parser.parse_args()
    without = arguments.without.split(";")
    solvers, about, met, rows = installed(without), machine(), True, []
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    for problem in PROBLEMS:
        if problem.name not in arguments.only.split(","):
            continue
        if arguments.quick:
            few = QUICK[problem.name]
            problem = replace(problem, n=few, n_systems=min(problem.n_systems, 4))
        results = measure(problem, solvers, 1 if arguments.quick else 3)
        met = show(problem, results) and met
        if problem.name == "P1":
            exact, arrays = reference(problem, 0), problem.arrays(0)
            for step in (0.1, 0.001):
                print(
                    f"- NumPy Euler, step {step}: relative error "
                    f"{error_of(euler(problem, arrays, step), exact):.1e}"
                )
        row = {
            "problem": asdict(problem),
            "results": [asdict(result) for result in results],
            "goals": [asdict(outcome) for outcome in outcomes(problem, results)],
        }
        if problem.n_systems == 1 and not problem.single:
            row["evaluation"] = product_limit(problem)
            met = show_limit(problem, row["evaluation"]) and met
        mine = results[0]
        if mine.rtol is not None:
            row["least"] = least_time(problem, mine.rtol, mine.cpu)
            show_least(row["least"])
        row["load"] = [about["load"], round(os.getloadavg()[0], 1)]
        row["date"], row["processor"] = about["date"], about["processor"]
        rows.append(row)
        if arguments.json:
            store(arguments.json, about, rows)
    print(f"\nload at the end {os.getloadavg()[0]:.1f}")
    return 0 if met or arguments.quick else 1


if __name__ == "__main__":
    sys.exit(main())
