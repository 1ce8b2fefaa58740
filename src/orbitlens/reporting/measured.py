"""What a report measures on a running model: the trace, its controls, and orbits.

Enters: a checkpoint, the running model and its inputs. Leaves: traces, bands of controls, orbits
and covariances. Controls run a few times with other seeds, so that they have a width.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import OrbitlensError
from orbitlens.reporting.data import Band, Orbits
from orbitlens.reporting.inputs import Material, ReportOptions
from orbitlens.reporting.orbits import orbits
from orbitlens.running.loading import fresh_twin
from orbitlens.tracing.trace import Collector, TraceOptions, finish, out_of_memory_explained
from orbitlens.tracing.trace_result import Trace

KEPT = 512  # tokens a trace keeps whole
LARGE_MODEL = 50_000_000  # parameters beyond which each control runs once
PARTS = ("attention", "mlp", "norm")
NO_MEMORY = (
    "the machine ran out of memory. Use fewer --max-tokens, a shorter --context or a smaller model."
)
Step = Callable[[str], None]
Part = TypeVar("Part")


class Parts:
    """Runs the parts of a report one by one and notes why one is missing."""

    def __init__(self, step: Step) -> None:
        """Take a function that is told what is about to be done."""
        self.step, self.missing = step, dict[str, str]()

    def attempt(self, name: str, what: str, work: Callable[[], Part]) -> Part | None:
        """Return what the work returns, or None with a note where it cannot be done."""
        self.step(what)
        try:
            with out_of_memory_explained():
                return work()
        except OrbitlensError as error:
            full = isinstance(error.__cause__, (MemoryError, RuntimeError))
            self.missing[name] = NO_MEMORY if full and "memory" in str(error) else str(error)
            return None


class Measured:
    """What needs a running model."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        running: Any,  # noqa: ANN401 - a model of transformers
        given: Material | None,
        options: ReportOptions,
        parts: Parts,
    ) -> None:
        """Take what all measurements share."""
        self.checkpoint, self.running, self.given = checkpoint, running, given
        self.options, self.parts = options, parts
        self.covariances: dict[tuple[str, int], torch.Tensor] = {}
        self.bands: dict[str, Band] = {}
        self.shuffled: Trace | None = None

    def trace(self) -> Trace | None:
        """Return the trace with its untrained twin inside; `bands` and `shuffled` are set too."""
        given = self.given
        if given is None:
            return None
        found = self.parts.attempt("trace", "tracing", lambda: self._main(given))
        if found is None:
            return None
        if self.options.controls < 1:
            self.parts.missing |= dict.fromkeys(("twin", "shuffled"), "controls were not asked for")
            return found
        twin = self._control("twin", "tracing untrained twins", self._twin)
        if given.shuffled is None:
            self.parts.missing["shuffled"] = "patches of images are not shuffled at the input"
        else:
            self.shuffled = self._control("shuffled", "tracing shuffled tokens", self._shuffled)
        return replace(found, twin=twin)

    def _main(self, given: Material) -> Trace:
        options = TraceOptions(seed=self.options.seed, n_kept=KEPT)
        collector, found = traced(self.checkpoint, self.running, given.batches(), options)
        for key, value in collector.covariances().items():
            stack, _, layer = key.rpartition(".")
            self.covariances[stack, int(layer)] = value
        return found

    def _control(self, name: str, what: str, run: Callable[[Material, int], Trace]) -> Trace | None:
        """Run a control with several seeds; return the first run and keep the band of all."""
        given = self.given
        assert given is not None
        runs = 1 if self.checkpoint.n_parameters > LARGE_MODEL else self.options.controls
        seeds = range(self.options.seed, self.options.seed + runs)
        found = self.parts.attempt(name, what, lambda: [run(given, seed) for seed in seeds])
        if not found:
            return None
        self.bands[name] = band(found)
        return found[0]

    def _twin(self, given: Material, seed: int) -> Trace:
        with tempfile.TemporaryDirectory(prefix="orbitlens-") as folder:
            running = fresh_twin(self.checkpoint.path, seed=seed)
            running.save_pretrained(folder)
            return traced(load_checkpoint(folder), running, given.batches(), measured_only(seed))[1]

    def _shuffled(self, given: Material, seed: int) -> Trace:
        assert given.shuffled is not None
        batches = given.shuffled(seed)
        return traced(self.checkpoint, self.running, batches, measured_only(seed))[1]

    def orbits(self) -> Orbits | None:
        """Return the tokens of the first context in their leading directions."""
        given = self.given
        if given is None:
            return None

        def work() -> Orbits:
            batch = given.batches()[0]
            return orbits(self.checkpoint, self.running, batch, given.token_names(batch))

        return self.parts.attempt("orbits", "following tokens", work)


def measured_only(seed: int) -> TraceOptions:
    """Return options that measure as the main trace does, and predict as little as there is."""
    return TraceOptions(closures=("plain",), closure="plain", n_kept=KEPT, seed=seed, flow_steps=1)


def traced(
    checkpoint: Checkpoint,
    running: Any,  # noqa: ANN401
    batches: Sequence[Any],
    options: TraceOptions,
) -> tuple[Collector, Trace]:
    """Run batches and return the sums and the trace."""
    collector = Collector(checkpoint, n_kept=options.n_kept)
    collector.run(running, None, iter(batches), None)
    return collector, finish(collector, running, options)


def band(runs: Sequence[Trace]) -> Band:
    """Return the smallest and the largest value of every quantity over several runs."""
    layers = list(zip(*(run.layers for run in runs), strict=True))  # each layer in every run
    return Band(
        runs=len(runs),
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
