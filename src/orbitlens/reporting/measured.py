"""What a report measures on a running model: the trace, its controls, and orbits.

Enters: a checkpoint, the running model and its inputs. Leaves: traces, bands of controls, orbits
and covariances. Controls run a few times with other seeds, so that they have a width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch

from orbitlens.errors import OrbitlensError
from orbitlens.reporting.data import ControlBand, Orbits
from orbitlens.reporting.material import BATCH, Material
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.orbits import orbits_of
from orbitlens.results.base import Result
from orbitlens.tracing.api import trace, trace_and_covariances
from orbitlens.tracing.collector import out_of_memory_explained
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.trace_result import DEFAULT_CLOSURE, Trace

KEPT = 512  # tokens a trace keeps whole
LARGE_MODEL = 50_000_000  # parameters beyond which each control runs once
PARTS = ("attention", "mlp", "norm")
DIRECTIONS = {name: name for name in PARTS} | {"cosine": "cosine_before"}
NO_MEMORY = "the machine ran out of memory. Use fewer tokens, a shorter context or a smaller model."
Step = Callable[[str], None]
Part = TypeVar("Part")


class Parts:
    """Runs the parts of a report one by one and notes why one is missing."""

    def __init__(self, step: Step, ready: Step) -> None:
        """Take functions that are told what is about to be done, and what came out."""
        self.step, self.ready, self.missing = step, ready, dict[str, str]()

    def attempt(self, name: str, what: str, work: Callable[[], Part]) -> Part | None:
        """Return what the work returns, or None with a note where it cannot be done."""
        self.step(what)
        try:
            with out_of_memory_explained():
                done = work()
                if isinstance(done, Result):
                    first, _, _ = done.summary().splitlines()[0].partition(". ")
                    self.ready(f"{name}: {first.removesuffix('.')}.")
                return done
        except OrbitlensError as error:
            full = isinstance(error.__cause__, (MemoryError, RuntimeError))
            self.missing[name] = NO_MEMORY if full and "memory" in str(error) else str(error)
            return None


class Measured:
    """What needs a running model."""

    def __init__(self, given: Material | None, options: ReportOptions, parts: Parts) -> None:
        """Take what all measurements share."""
        self.given, self.options, self.parts = given, options, parts
        self.covariances: dict[tuple[str, int], torch.Tensor] = {}
        self.bands: dict[str, ControlBand] = {}
        self.shuffled: Trace | None = None

    def trace(self) -> Trace | None:
        """Return the trace with its untrained twin inside; `bands` and `shuffled` are set too."""
        given = self.given
        if given is None:
            return None
        main = self.parts.attempt("trace", "tracing", lambda: self._main(given))
        if main is None:
            return None
        if self.options.controls < 1:
            self.parts.missing |= dict.fromkeys(("twin", "shuffled"), "controls were not asked for")
            return main
        twin = self._control("twin", "tracing untrained twins", given, self._twin)
        if not given.can_shuffle:
            self.parts.missing["shuffled"] = "patches of images are not shuffled at the input"
        else:
            self.shuffled = self._control(
                "shuffled", "tracing shuffled tokens", given, self._shuffled
            )
        return replace(main, twin=twin)

    def _options(self, given: Material, seed: int) -> TraceOptions:
        return TraceOptions(
            seed=seed,
            n_kept=KEPT,
            context=given.context,
            batch=BATCH,
            max_tokens=self.options.max_tokens,
        )

    def _main(self, given: Material) -> Trace:
        options = self._options(given, self.options.seed)
        result, covariances = trace_and_covariances(given.model, given.inputs, options=options)
        for key, value in covariances.items():
            stack, _, layer = key.rpartition(".")
            self.covariances[stack, int(layer)] = value
        return result

    def _control(
        self, name: str, what: str, given: Material, run: Callable[[Material, int], Trace]
    ) -> Trace | None:
        """Run a control with several seeds; return the first run and keep the band of all.

        Of the others no more than the band is kept, which has nothing predicted in it.
        """
        n_runs = n_control_runs(given.model.n_parameters, self.options)
        seeds = range(self.options.seed, self.options.seed + n_runs)
        runs = self.parts.attempt(name, what, lambda: [run(given, seed) for seed in seeds])
        if not runs:
            return None
        self.bands[name] = band(runs)
        return runs[0]

    def _control_options(self, given: Material, seed: int) -> TraceOptions:
        options = measured_only(self._options(given, seed))
        if seed == self.options.seed:
            return options
        return replace(options, direction_closures=(DEFAULT_CLOSURE,))

    def _twin(self, given: Material, seed: int) -> Trace:
        options = self._control_options(given, seed)
        return trace(given.model.twin(seed), given.inputs, options=options)

    def _shuffled(self, given: Material, seed: int) -> Trace:
        options = replace(self._control_options(given, seed), shuffle=True)
        return trace(given.model, given.inputs, options=options)

    def orbits(self) -> Orbits | None:
        """Return the tokens of the first context in their leading directions."""
        given = self.given
        if given is None:
            return None

        def work() -> Orbits:
            batch = given.first_batch()
            return orbits_of(given.model.running, batch, given.token_names(batch))

        return self.parts.attempt("orbits", "following tokens", work)


def n_control_runs(n_parameters: int, options: ReportOptions) -> int:
    """Return how often each control of a model of that size is run."""
    return min(options.controls, 1) if n_parameters > LARGE_MODEL else options.controls


def measured_only(options: TraceOptions) -> TraceOptions:
    """Return options that measure as the main trace does, and predict as little as there is."""
    return replace(options, closures=("plain",), closure="plain", flow_steps=1, forecasts=())


def band(runs: Sequence[Trace]) -> ControlBand:
    """Return the smallest and the largest value of every quantity over several runs."""
    layers = list(zip(*(run.layers for run in runs), strict=True))  # each layer in every run
    return ControlBand(
        runs=len(runs),
        directions={
            name: tuple(_ends([getattr(x.directions, field) for x in same]) for same in layers)
            for name, field in DIRECTIONS.items()
        },
        parts={
            part: tuple(
                _ends([getattr(x, part).measured_log_change for x in same]) for same in layers
            )
            for part in PARTS
        },
        metrics={
            name: tuple(_ends([x.metrics[name] for x in same]) for same in layers)
            for name in runs[0].layers[0].metrics
        },
    )


def _ends(values: Sequence[float]) -> tuple[float, float]:
    return min(values), max(values)
