"""integrate_flow: a System and tokens -> Trajectory, by adaptive pairs or fixed steps.

Enters: a `System`, tokens, a time. Leaves: a `Trajectory` whose status says what happened. DOP853
needs the fewest evaluations from 1e-5 down, a 5(4) pair above; fixed-step methods are there to be
compared with. Divergence is a result: the chart is changed and the run goes on.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import torch

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows import charts, steps
from orbitlens.flows._fast import fast_path
from orbitlens.flows.adaptive import AdaptiveRun
from orbitlens.flows.charts import RawChart, ScaledChart
from orbitlens.flows.fields import checked_positions, lengths
from orbitlens.flows.fixed import FixedSteps
from orbitlens.flows.outcome import describe_end
from orbitlens.flows.steps import Segment, StepLimits, Stop, Tableau, Vector
from orbitlens.flows.system import Geometry, System
from orbitlens.running.threads import threads_for_pairs
from orbitlens.trajectory import Event, Status, Trajectory

TIGHT = 1e-5  # tolerance from which the 8th-order method pays
SMALLEST_TOLERANCE = 1e-13
SMALLEST_SINGLE_TOLERANCE = 1e-6
EVENTS = {
    Stop.RAN_AWAY: "tokens ran away: changed to the scaled chart",
    Stop.CAME_BACK: "tokens came back: changed to the raw chart",
    Stop.ROUNDING: "steps failed because of float32 rounding: went on in float64",
    Stop.STUCK: "the integrator stopped: steps became shorter than float64 can add",
    Stop.OVERFLOW: "tokens left the range of float64",
}


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


TABLEAUS: dict[Method, Tableau] = {
    Method.DOP853: steps.DOP853,
    Method.RK45: steps.RK45,
    Method.EULER: steps.EULER,
    Method.MIDPOINT: steps.MIDPOINT,
    Method.RK4: steps.RK4,
}


@dataclass(frozen=True, kw_only=True)
class IntegrateOptions:
    """How to integrate, beyond which system and how long."""

    rtol: float = 1e-6
    method: Method = Method.AUTO
    step: float | None = None  # of the fixed-step methods
    n_saved: int = 65  # moments kept, the first and the last included
    max_steps: int = 100_000  # failed ones included
    scaled_chart: bool | None = None  # None: change to it when tokens run away
    compiled: bool = True  # small systems go to the compiled integrator
    seed: int = 0  # of the noise
    single: bool = False  # attention in float32, tokens in float64; for rtol from 1e-6 up

    @property
    def adaptive_method(self) -> Tableau:
        """The adaptive method: as asked for, or by the tolerance."""
        auto = Method.DOP853 if self.rtol <= TIGHT else Method.RK45
        return TABLEAUS[auto if self.method is Method.AUTO else self.method]

    @property
    def may_be_compiled(self) -> bool:
        """Whether small systems are left to the compiled integrator."""
        return self.compiled and not self.single and self.adaptive_method is steps.DOP853


def integrate_flow(
    system: System, tokens: Tokens, *, until: float, options: IntegrateOptions | None = None
) -> Trajectory:
    """Integrate the flow of `tokens` under `system` up to time `until`.

    Raises:
        InputError: shapes, times or tolerances that cannot be met.
    """
    options = options or IntegrateOptions()
    start = checked_start(system, tokens, until, options)
    with threads_for_pairs(system.n_heads * len(start) ** 2):
        run = _Run(system, start, np.linspace(0.0, until, options.n_saved), options)
        if not options.method.is_adaptive or system.noise > 0:
            run.fixed()
        else:
            run.adaptive()
        return run.trajectory()


def finish_flow(
    system: System, start: Tokens, *, until: float, options: IntegrateOptions, first: Segment
) -> Trajectory:
    """Go on from a first stretch in the raw chart, that began at a checked start."""
    run = _Run(system, start, np.linspace(0.0, until, options.n_saved), options)
    run.adaptive(first)
    return run.trajectory()


def checked_start(
    system: System, tokens: Tokens, until: float, options: IntegrateOptions
) -> Tokens:
    """Return where a flow starts: on its sphere, with its positions.

    Raises:
        InputError: shapes, times or tolerances that cannot be met.
    """
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
    if options.scaled_chart:
        _check_chart(system, x)
    if system.geometry.on_sphere:
        if (x.norm(dim=-1) == 0).any():
            raise InputError("a token at the origin has no place on the sphere. Move it.")
        x = x / lengths(x)
    return x


def _check_chart(system: System, x: Tokens) -> None:
    if system.geometry is not Geometry.FREE:
        raise InputError("the scaled chart is for free flows; other geometries stay bounded.")
    if system.unnormalised:
        raise InputError("the scaled chart is for softmax attention; these weights have no limit.")
    if not x.any():
        raise InputError("the scaled chart is for tokens with a size; all of these are 0.")


def _check_options(system: System, options: IntegrateOptions) -> None:
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
    options: IntegrateOptions
    saved: list[tuple[Tokens, float]] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    n_evaluations: int = 0
    n_steps: int = 0
    stop: Stop = Stop.DONE
    t: float = 0.0
    size: float = -math.inf  # logarithm of the largest token's, of free flows

    def __post_init__(self) -> None:
        """Keep the start."""
        self.saved.append((self.start, 0.0))
        self.single = self.options.single

    # --- adaptive ---

    def adaptive(self, first: Segment | None = None) -> None:
        """Go from chart to chart until the time is up, after a stretch that is done if any is."""
        asked = self.options.scaled_chart
        may_change = asked is None and charts.has_scaled_chart(self.system)
        self.largest = charts.largest_raw(self.start) if may_change else math.inf
        begin_scaled = may_change and charts.log_size(self.start, 0.0) > charts.LARGEST
        scaled = bool(asked) or begin_scaled
        y = charts.to_vector(self.start, 0.0, scaled=scaled)
        while self.t < self.times[-1]:
            segment = first or self._segment(y, scaled)
            first = None
            self._keep(segment, scaled)
            if self.t >= self.times[-1] or self.stop in {Stop.STEP_LIMIT, Stop.STUCK}:
                break
            tokens, log_scale = charts.to_tokens(segment.y, len(self.start), scaled=scaled)
            scaled = self.stop is Stop.RAN_AWAY or (scaled and self.stop is not Stop.CAME_BACK)
            self.single = self.single and self.stop is not Stop.ROUNDING
            self._note()
            y = charts.to_vector(tokens, log_scale, scaled=scaled)

    def _segment(self, y: Vector, scaled: bool) -> Segment:
        """Integrate in one chart, by compiled code where there is some for it."""
        moments = self.times[len(self.saved) :]
        changes = math.isfinite(self.largest)
        limits = StepLimits(
            rtol=self.options.rtol,
            max_steps=self.options.max_steps - self.n_steps,
            low=self.largest - charts.BACK if scaled and changes else -math.inf,
            high=math.inf if scaled else self.largest,
        )
        n = len(self.start)
        if self.options.may_be_compiled:
            follow = fast_path(self.system, n).follow
            if follow is not None:
                return follow(y, self.t, moments, scaled, limits)
        kind = ScaledChart if scaled else RawChart
        exact = kind(self.system, n)
        chart = kind(self.system, n, torch.float32) if self.single else exact
        run = AdaptiveRun(
            chart, self.options.adaptive_method, limits, exact if self.single else None
        )
        return run.follow(y, self.t, moments)

    def _keep(self, segment: Segment, scaled: bool) -> None:
        n = len(self.start)
        self.saved += [charts.to_tokens(y, n, scaled=scaled) for y in segment.saved]
        self.n_steps += segment.n_steps
        self.n_evaluations += segment.n_evaluations
        self.stop, self.t = segment.stop, segment.t
        if self.system.geometry is Geometry.FREE and np.isfinite(segment.y).all():
            self.size = charts.log_size(*charts.to_tokens(segment.y, n, scaled=scaled))

    def _note(self) -> None:
        if self.stop in EVENTS:
            self.events.append(Event(time=self.t, what=EVENTS[self.stop]))

    # --- fixed steps ---

    def fixed(self) -> None:
        """Take equal steps; a noisy flow takes Euler's."""
        asked = self.options.method
        method = Method.EULER if self.system.noise > 0 else asked
        fixed = FixedSteps.of(
            RawChart(self.system, len(self.start)),
            TABLEAUS[method],
            step=self.options.step,
            until=float(self.times[-1]),
            noise=self.system.noise,
            seed=self.options.seed,
        )
        self.times = fixed.nearest(self.times)
        y = charts.to_vector(self.start, 0.0, scaled=False)
        self._keep(fixed.follow(y, self.times[1:], self.options.max_steps), scaled=False)

    # --- result ---

    def trajectory(self) -> Trajectory:
        """Put together what was kept."""
        tokens = torch.stack([x for x, _ in self.saved])
        log_scale = torch.tensor([s for _, s in self.saved], dtype=torch.float64)
        times = torch.from_numpy(self.times[: len(self.saved)].copy())
        end = describe_end(self.system.geometry, times, tokens, log_scale)
        status, when = end.status, end.time
        if self.stop in {Stop.STEP_LIMIT, Stop.STUCK, Stop.OVERFLOW}:
            self._note()
            if status is not Status.DIVERGED:
                status, when = (Status.DIVERGED if self._diverged else Status.STEP_LIMIT), self.t
        return Trajectory(
            times=times,
            unit_tokens=tokens,
            log_scale=log_scale,
            status=status,
            status_time=when,
            n_clusters=end.n_clusters,
            n_evaluations=self.n_evaluations,
            n_steps=self.n_steps,
            events=tuple(self.events),
        )

    @property
    def _diverged(self) -> bool:
        """Whether tokens had run away when a run was stopped, or are infinite.

        A softmax flow grows exponentially at most (T5): there, steps that become too short are no
        sign of it.
        """
        stuck = self.stop is Stop.STUCK and self.system.unnormalised
        infinite = self.system.geometry is Geometry.FREE and (stuck or self.stop is Stop.OVERFLOW)
        return infinite or self.size > max(charts.log_size(self.start, 0.0), 0.0) + charts.RUNAWAY
