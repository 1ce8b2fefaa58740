"""simulate: a System and tokens -> Trajectory, by adaptive pairs or fixed steps.

Enters: a `System`, tokens, a time. Leaves: a `Trajectory` whose status says what happened. DOP853
needs the fewest evaluations from 1e-5 down, a 5(4) pair above; fixed-step methods are there to be
compared with. Divergence is a result: the chart is changed and the run goes on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch
from scipy.integrate import OdeSolver

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows import kernel
from orbitlens.flows.charts import Chart, RawChart, ScaledChart, Vector, logit_spread
from orbitlens.flows.compiled import fits_kernel, run_compiled
from orbitlens.flows.fields import checked_positions, lengths
from orbitlens.flows.outcome import describe_end
from orbitlens.flows.steps import EighthOrder, FifthOrder
from orbitlens.flows.streams import random_stream
from orbitlens.flows.system import Geometry, System
from orbitlens.running.workers import numpy_threads, torch_threads
from orbitlens.trajectory import Event, Status, Trajectory

TIGHT = 1e-5  # tolerance from which the 8th-order method pays
SPREAD_LIMIT = math.log(1e4)  # of scores: beyond, tokens are on their way out and change chart
SMALLEST_TOLERANCE = 1e-13
SMALLEST_SINGLE_TOLERANCE = 1e-6
NOISY = 0.1  # share of the tolerance that rounding in single precision may take up
SWITCHED = "tokens ran away: changed to the scaled chart"
NOISE = "steps failed because of float32 rounding: went on in float64"
STUCK = "the integrator stopped: steps became shorter than float64 can add"


class Method(StrEnum):
    """How to integrate."""

    AUTO = "auto"  # DOP853 or RK45, by the tolerance
    DOP853 = "dop853"
    RK45 = "rk45"
    EULER = "euler"
    MIDPOINT = "midpoint"
    RK4 = "rk4"

    @property
    def is_adaptive(self) -> bool:
        """Whether the method chooses its own steps."""
        return self in {Method.AUTO, Method.DOP853, Method.RK45}


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """How to simulate, beyond which system and how long."""

    rtol: float = 1e-6
    method: Method = Method.AUTO
    step: float | None = None  # of the fixed-step methods
    n_saved: int = 65  # moments kept, the first and the last included
    max_steps: int = 100_000
    scaled_chart: bool | None = None  # None: change to it when tokens run away
    compiled: bool = True  # small systems go to the compiled integrator
    seed: int = 0  # of the noise
    single: bool = False  # attention in float32, tokens in float64; for rtol from 1e-6 up


def simulate(
    system: System, tokens: Tokens, *, until: float, options: SimulationOptions | None = None
) -> Trajectory:
    """Integrate the flow of `tokens` under `system` up to time `until`.

    Raises:
        InputError: shapes, times or tolerances that cannot be met.
    """
    options = options or SimulationOptions()
    start = _start(system, tokens, until, options)
    times = np.linspace(0.0, until, options.n_saved)
    run = _Run(system, start, times, options)
    if not options.method.is_adaptive or system.noise > 0:
        run.fixed()
    elif (
        _eighth_order(options)
        and options.compiled
        and not options.single
        and fits_kernel(system, len(start))
    ):
        run.compiled()
    else:
        with numpy_threads(1):  # attention has threads of its own
            run.adaptive()
    return run.trajectory()


def _eighth_order(options: SimulationOptions) -> bool:
    tight = options.method is Method.AUTO and options.rtol <= TIGHT
    return options.method is Method.DOP853 or tight


def _start(system: System, tokens: Tokens, until: float, options: SimulationOptions) -> Tokens:
    if tokens.ndim != 2 or tokens.shape[1] != system.d_model or tokens.shape[0] < 1:
        raise InputError(
            f"tokens have shape {list(tokens.shape)}; this system moves tokens of width "
            f"{system.d_model}, one a row."
        )
    x = tokens.detach().double()
    if not np.isfinite(x.numpy()).all():
        raise InputError("the tokens hold NaN or infinity; expected finite numbers.")
    if not 0 < until < math.inf:
        raise InputError(f"the time to run is {until}; expected a positive, finite number.")
    _check_options(system, options)
    if system.positions is not None:
        positions = checked_positions(system, x.shape[0])
        x = x if system.reinjected else x + positions
    if options.scaled_chart and not x.any():
        raise InputError("the scaled chart is for tokens with a size; all of these are 0.")
    if system.geometry.on_sphere:
        if (x.norm(dim=-1) == 0).any():
            raise InputError("a token at the origin has no place on the sphere. Move it.")
        x = x / lengths(x)
    return x


def _check_options(system: System, options: SimulationOptions) -> None:
    if not SMALLEST_TOLERANCE <= options.rtol < 1:
        raise InputError(
            f"a relative tolerance of {options.rtol} was asked for; float64 can meet "
            f"{SMALLEST_TOLERANCE} to 1 (exclusive)."
        )
    if options.single and options.rtol < SMALLEST_SINGLE_TOLERANCE:
        raise InputError(
            f"a relative tolerance of {options.rtol} was asked for with attention in float32, "
            f"which can meet {SMALLEST_SINGLE_TOLERANCE} at best. Raise it, or compute in float64."
        )
    if options.single and (not options.method.is_adaptive or system.noise > 0):
        raise InputError("attention in float32 is for the adaptive methods; leave `single` out.")
    if options.n_saved < 2 or options.max_steps < 1:
        raise InputError("n_saved must be at least 2 and max_steps at least 1.")


@dataclass
class _Run:
    """One integration under way."""

    system: System
    start: Tokens
    times: Vector
    options: SimulationOptions
    saved: list[tuple[Tokens, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    n_evaluations: int = 0
    n_steps: int = 0
    error: float = 0.0
    stopped_at: float | None = None
    blew_up: bool = False

    def __post_init__(self) -> None:
        """Start in the precision that was asked for."""
        self.single = self.options.single

    # --- compiled ---

    def compiled(self) -> None:
        """Hand the whole integration to the compiled kernel."""
        free = self.system.geometry is Geometry.FREE and not self.system.unnormalised
        may_switch = free and self.options.scaled_chart is None
        self._check_chart()
        run = run_compiled(
            self.system,
            self.start,
            self.times,
            rtol=self.options.rtol,
            max_steps=self.options.max_steps,
            spread_limit=SPREAD_LIMIT if may_switch else math.inf,
            scaled=self.options.scaled_chart is True,
        )
        self.saved, self.n_steps, self.n_evaluations = run.saved, run.n_steps, run.n_evaluations
        if run.switched_at is not None:
            self.events.append(Event(time=run.switched_at, what=SWITCHED))
        if run.status in {kernel.STEP_LIMIT, kernel.STUCK}:
            self.stopped_at = run.time
        if run.status == kernel.STUCK:
            self._blow_up(run.time, STUCK)

    # --- adaptive ---

    def adaptive(self) -> None:
        """Step SciPy's solver from chart to chart until the time is up."""
        t, tokens, log_scale = 0.0, self.start, 0.0
        self._check_chart()
        chart = self._chart(scaled=self.options.scaled_chart is True)
        self.saved.append((self.start, 0.0))
        while t < self.times[-1] and self.stopped_at is None:
            solver = self._solver(chart, t, chart.encode(tokens, log_scale))
            t, tokens, log_scale, change = self._follow(solver, chart)
            if change is None:
                continue
            self.events.append(Event(time=t, what=change))
            self.single = self.single and change != NOISE
            scaled = change == SWITCHED or isinstance(chart, ScaledChart)
            chart = self._chart(scaled=scaled)

    def _check_chart(self) -> None:
        if self.options.scaled_chart and self.system.geometry is not Geometry.FREE:
            raise InputError("the scaled chart is for free flows; other geometries stay bounded.")

    def _chart(self, *, scaled: bool) -> Chart:
        kind = ScaledChart if scaled else RawChart
        dtype = torch.float32 if self.single else torch.float64
        return kind(self.system, self.start.shape[0], dtype)

    def _solver(self, chart: Chart, t: float, y: Vector) -> OdeSolver:
        rtol, atol = chart.tolerances(self.options.rtol, y)
        kind = EighthOrder if _eighth_order(self.options) else FifthOrder
        with np.errstate(all="ignore"):
            solver = kind(chart.rate, t, y, self.times[-1], rtol=rtol, atol=atol)
        if self.single:
            solver.rounding = self._rounding(solver, chart)
        return solver

    def _follow(self, solver: OdeSolver, chart: Chart) -> tuple[float, Tokens, float, str | None]:
        """Step until the end, the limit on steps, or something has to change; say what."""
        while solver.status == "running":
            if self.n_steps >= self.options.max_steps:
                self.stopped_at = float(solver.t)
                break
            evaluations = solver.nfev
            with np.errstate(all="ignore"):  # a stage that overflows makes the step shorter
                solver.step()
            failed = solver.nfev - evaluations > solver.n_stages
            if solver.status == "failed":
                self._blow_up(float(solver.t), STUCK)
                break
            self.n_steps += 1
            self._save(solver, chart)
            solver.y = chart.tidy(solver.y)
            tokens, log_scale = chart.decode(solver.y)
            if self._runs_away(chart, tokens, log_scale):
                self.n_evaluations += solver.nfev
                return float(solver.t), tokens, log_scale, SWITCHED
            if self.single and failed and self._is_noise(solver, chart):
                self.n_evaluations += solver.nfev
                return float(solver.t), tokens, log_scale, NOISE
        self.n_evaluations += solver.nfev
        tokens, log_scale = chart.decode(solver.y)
        return float(solver.t), tokens, log_scale, None

    def _rounding(self, solver: OdeSolver, chart: Chart) -> float:
        """Measure by one float64 evaluation how far off the last rate is, in what is allowed."""
        kind = ScaledChart if isinstance(chart, ScaledChart) else RawChart
        exact = kind(self.system, self.start.shape[0])
        self.n_evaluations += 1
        wrong = exact.rate(solver.t, solver.y) - solver.f
        allowed = solver.atol + solver.rtol * np.abs(solver.y)
        return float(np.sqrt(np.mean((wrong / allowed) ** 2)))

    def _is_noise(self, solver: OdeSolver, chart: Chart) -> bool:
        """Say whether rounding, over the step just taken, takes up a good part of the tolerance.

        A step that failed although it was short enough fails again however short it becomes:
        rounding does not shrink as a power of it.
        """
        return float(solver.h_previous) * self._rounding(solver, chart) > NOISY

    def _runs_away(self, chart: Chart, tokens: Tokens, log_scale: float) -> bool:
        free = self.system.geometry is Geometry.FREE and not self.system.unnormalised
        if not free or self.options.scaled_chart is False or isinstance(chart, ScaledChart):
            return False
        with torch_threads(1):  # too little to wake others for, who then spin
            return logit_spread(self.system, tokens, log_scale) > SPREAD_LIMIT

    def _save(self, solver: OdeSolver, chart: Chart) -> None:
        """Keep the moments that the last step passed, from the method's own interpolant."""
        wanted = self.times[len(self.saved) :]
        wanted = wanted[wanted <= solver.t + 1e-12 * abs(solver.t)]
        if not len(wanted):
            return
        between = solver.dense_output() if wanted[0] < solver.t else None
        for moment in wanted:
            y = solver.y if between is None or moment >= solver.t else between(moment)
            self.saved.append(chart.decode(chart.tidy(y)))

    # --- fixed steps ---

    def fixed(self) -> None:
        """Take equal steps; noise, where there is any, is added after each (Euler-Maruyama)."""
        method = Method.EULER if self.system.noise > 0 else self.options.method
        method = Method.RK4 if method.is_adaptive else method
        step = self.options.step
        until = float(self.times[-1])
        if step is None or not 0 < step <= until:
            raise InputError(
                f"a step of {step} was given for a run of {until}; fixed-step methods and noise "
                "need a step between 0 and the time to run."
            )
        n_steps = max(1, round(until / step))
        chart = RawChart(self.system, self.start.shape[0])
        generator = random_stream(self.options.seed, "noise")
        y, h = chart.encode(self.start, 0.0), until / n_steps
        advance = STEPS[method]
        # Between steps there is nothing to save: the moments kept are the steps nearest to those.
        kept = np.unique(np.rint(self.times / h).astype(int))
        self.times = kept * h
        self.saved.append((self.start, 0.0))
        for index in range(min(n_steps, self.options.max_steps)):
            y = advance(chart.rate, y, h)
            if self.system.noise > 0:
                kick = torch.randn(y.size, generator=generator, dtype=torch.float64).numpy()
                y = y + self.system.noise * math.sqrt(h) * kick
            y = chart.tidy(y)
            self.n_steps += 1
            self.n_evaluations += N_STAGES[method]
            now = (index + 1) * h
            if not np.isfinite(y).all():
                self._blow_up(now, "tokens left the range of float64")
                return
            if index + 1 in kept:
                self.saved.append(chart.decode(y))
        if n_steps > self.options.max_steps:
            self.stopped_at = self.options.max_steps * h

    # --- result ---

    def _blow_up(self, time: float, what: str) -> None:
        """Note a stop that no more steps would help."""
        self.stopped_at, self.blew_up = time, True
        self.events.append(Event(time=time, what=what))

    def trajectory(self) -> Trajectory:
        """Put together what was kept."""
        tokens = torch.stack([x for x, _ in self.saved])
        log_scale = torch.tensor([s for _, s in self.saved], dtype=torch.float64)
        times = torch.from_numpy(self.times[: len(self.saved)].copy())
        end = describe_end(self.system.geometry, times, tokens, log_scale)
        status, when = end.status, end.time
        if self.stopped_at is not None and status is not Status.DIVERGED:
            # A softmax flow grows exponentially at most (T5); without one it can be infinite soon.
            escaped = self.blew_up and self.system.geometry is Geometry.FREE
            status = Status.DIVERGED if escaped else Status.STEP_LIMIT
            when = self.stopped_at
        return Trajectory(
            times=times,
            unit_tokens=tokens,
            log_scale=log_scale,
            status=status,
            status_time=when,
            n_clusters=end.n_clusters,
            n_evaluations=self.n_evaluations,
            n_steps=self.n_steps,
            error_estimate=self.options.rtol if self.options.method.is_adaptive else math.inf,
            events=tuple(self.events),
        )


# --- fixed-step methods ----------------------------------------------------------------------

Rate = Callable[[float, Vector], Vector]


def _euler(rate: Rate, y: Vector, h: float) -> Vector:
    return y + h * rate(0.0, y)


def _midpoint(rate: Rate, y: Vector, h: float) -> Vector:
    return y + h * rate(0.0, y + h / 2 * rate(0.0, y))


def _rk4(rate: Rate, y: Vector, h: float) -> Vector:
    k1 = rate(0.0, y)
    k2 = rate(0.0, y + h / 2 * k1)
    k3 = rate(0.0, y + h / 2 * k2)
    k4 = rate(0.0, y + h * k3)
    return y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)


STEPS = {Method.EULER: _euler, Method.MIDPOINT: _midpoint, Method.RK4: _rk4}
N_STAGES = {Method.EULER: 1, Method.MIDPOINT: 2, Method.RK4: 4}
