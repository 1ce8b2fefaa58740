"""Models -> ReportData: run scan, trace, audit and simulations; what fails is said, not fatal.

Enters: the paths of models and `ReportOptions`. Leaves: `ReportData`. A path that is no model
raises; a part that a model does not allow is None, with its reason in `missing`.
"""

import platform
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.model import Checkpoint, Position
from orbitlens.errors import InputError, OrbitlensError
from orbitlens.headmap import ScanOptions, scan
from orbitlens.heads import load_layer
from orbitlens.measure.trace import Collector, TraceOptions, finish
from orbitlens.measure.trace_result import Trace
from orbitlens.model import fresh_twin, load_model, threads_for
from orbitlens.report.data import FlowFrames, ModelReport, ReportData
from orbitlens.report.flow_picture import flow_picture
from orbitlens.report.inputs import Material, ReportOptions, material
from orbitlens.report.orbits import orbits
from orbitlens.report.words import in_words
from orbitlens.scan_result import Scan
from orbitlens.simulate.integrate import SimulationOptions, simulate
from orbitlens.simulate.predict import predict
from orbitlens.simulate.setup import Setup, build
from orbitlens.simulate.system import system_of_heads
from orbitlens.symmetry.audit import AuditOptions, audit
from orbitlens.symmetry.audit_result import Audit
from orbitlens.symmetry.subject import make_subject
from orbitlens.theory.maps import HeadMaps

WIDEST_FLOW = 512  # d_model up to which the flow of single heads is simulated
FLOW_TOKENS = 24
FLOW_FRAMES = 25
FLOW_STEPS = 400  # of the integrator; a flow that is stiffer than that is shown as far as it got
KEPT = 512  # tokens a trace keeps whole
Step = Callable[[str], None]
Part = TypeVar("Part")


def gather(
    paths: Sequence[str], options: ReportOptions | None = None, *, step: Step | None = None
) -> ReportData:
    """Run everything on every model.

    Args:
        paths: of models.
        options: how much to compute, and on what.
        step: called with what is about to be done.

    Raises:
        OrbitlensError: a path is no model.
    """
    chosen = options or ReportOptions()
    if not paths:
        raise InputError("no model was given. Expected the folder of at least one.")
    checkpoints = [load_checkpoint(path) for path in paths]  # complains before anything runs
    names = _names([checkpoint.path for checkpoint in checkpoints])
    say = step or (lambda what: None)
    models = []
    for checkpoint, name in zip(checkpoints, names, strict=True):
        with threads_for(checkpoint.n_parameters):
            models.append(_gather_model(checkpoint, name, chosen, partial(_say, say, name)))
    return ReportData(models=tuple(models), settings=_settings(chosen), versions=_versions())


def _say(say: Step, name: str, what: str) -> None:
    say(f"{name}: {what}")


def _names(paths: Sequence[str]) -> list[str]:
    """Return short names that differ."""
    short = [Path(path).name for path in paths]
    return [name if short.count(name) == 1 else f"{name} ({k + 1})" for k, name in enumerate(short)]


def _settings(options: ReportOptions) -> dict[str, Any]:
    files = {
        name: value.name if value else None
        for name in ("text", "images", "tokens")
        for value in [getattr(options, name)]
    }
    numbers = ("max_tokens", "context", "samples", "permutations", "flows", "controls", "seed")
    return {**files, **{name: getattr(options, name) for name in numbers}}


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "orbitlens": version("orbitlens"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


class _Parts:
    """Runs parts one by one and notes why one is missing."""

    def __init__(self, step: Step) -> None:
        self.step, self.missing = step, dict[str, str]()

    def attempt(self, name: str, what: str, work: Callable[[], Part]) -> Part | None:
        self.step(what)
        try:
            return work()
        except OrbitlensError as error:
            self.missing[name] = str(error)
            return None


def _gather_model(
    checkpoint: Checkpoint, name: str, options: ReportOptions, step: Step
) -> ModelReport:
    parts = _Parts(step)
    running, tokenizer = parts.attempt("model", "loading", lambda: load_model(checkpoint.path)) or (
        None,
        None,
    )
    given = None
    if running is not None:
        family = checkpoint.architecture.family
        given = parts.attempt(
            "model", "reading inputs", lambda: material(running, tokenizer, family, options)
        )
    why = parts.missing.get("model", "")
    measured = _Measured(checkpoint, running, given, options, parts)
    trace = measured.trace()
    scanned = parts.attempt(
        "scan", "scanning", lambda: scan(checkpoint, _scan_options(checkpoint, options, measured))
    )
    audited = None
    if given is not None:
        audited = parts.attempt(
            "audit", "auditing", lambda: _audit(checkpoint, given, name, options)
        )
    if given is None:
        parts.missing |= dict.fromkeys(("trace", "audit", "orbits"), why)
    flows = _flows(checkpoint, scanned, options, parts)
    return ModelReport(
        name=name,
        words=tuple(in_words(scanned, trace, audited)),
        scan=None if scanned is None else _brief(scanned.to_json()),
        trace=None if trace is None else _brief(trace.to_json()),
        shuffled=measured.shuffled(),
        audit=None if audited is None else audited.to_json(),
        flows=flows,
        orbits=measured.orbits(),
        missing=parts.missing,
        notes=given.notes if given is not None else (),
    )


# --- measuring -------------------------------------------------------------------------------


class _Measured:
    """What needs a running model."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        running: Any,  # noqa: ANN401
        given: Material | None,
        options: ReportOptions,
        parts: _Parts,
    ) -> None:
        self.checkpoint, self.running, self.given = checkpoint, running, given
        self.options, self.parts = options, parts
        self.covariances: dict[tuple[str, int], torch.Tensor] = {}

    def trace(self) -> Trace | None:
        given = self.given
        if given is None:
            return None
        found = self.parts.attempt("trace", "tracing", lambda: self._main(given))
        if found is None or not self.options.controls:
            if found is not None:
                self.parts.missing["twin"] = "controls were not asked for"
            return found
        twin = self.parts.attempt("twin", "tracing its untrained twin", lambda: self._twin(given))
        return replace(found, twin=twin)

    def _main(self, given: Material) -> Trace:
        collector, found = _traced(self.checkpoint, self.running, given.batches(), self.options)
        for key, value in collector.covariances().items():
            stack, _, layer = key.rpartition(".")
            self.covariances[stack, int(layer)] = value
        return found

    def _twin(self, given: Material) -> Trace:
        with tempfile.TemporaryDirectory(prefix="orbitlens-") as folder:
            running = fresh_twin(self.checkpoint.path, seed=self.options.seed)
            running.save_pretrained(folder)
            checkpoint = load_checkpoint(folder)
            return _traced(checkpoint, running, given.batches(), self.options)[1]

    def shuffled(self) -> dict[str, Any] | None:
        given = self.given
        if given is None or "trace" in self.parts.missing or not self.options.controls:
            return None
        if given.shuffled is None:
            self.parts.missing["shuffled"] = "patches of images are not shuffled at the input"
            return None
        batches = given.shuffled()
        found = self.parts.attempt(
            "shuffled",
            "tracing shuffled tokens",
            lambda: _traced(self.checkpoint, self.running, batches, self.options)[1],
        )
        return None if found is None else _brief(found.to_json())

    def orbits(self) -> Any:  # noqa: ANN401 - Orbits or None
        given = self.given
        if given is None:
            return None

        def work() -> Any:  # noqa: ANN401
            batch = given.batches()[0]
            return orbits(self.checkpoint, self.running, batch, given.token_names(batch))

        return self.parts.attempt("orbits", "following tokens", work)


def _traced(
    checkpoint: Checkpoint,
    running: Any,  # noqa: ANN401
    batches: list[Any],
    options: ReportOptions,
) -> tuple[Collector, Trace]:
    chosen = TraceOptions(seed=options.seed, n_kept=KEPT)
    collector = Collector(checkpoint, n_kept=KEPT)
    collector.run(running, None, iter(batches), None)
    return collector, finish(collector, running, chosen)


def _scan_options(
    checkpoint: Checkpoint, options: ReportOptions, measured: _Measured
) -> ScanOptions:
    rotary = any(s.position is Position.ROTARY for s in checkpoint.architecture.stacks)
    return ScanOptions(
        context=options.context if rotary else None, covariances=measured.covariances or None
    )


def _audit(checkpoint: Checkpoint, given: Material, name: str, options: ReportOptions) -> Audit:
    inputs = given.audit()
    model, _ = load_model(checkpoint.path, attention="sdpa")
    subject = make_subject(model, n_front=inputs.n_front, n_after_query=inputs.n_after_query)
    chosen = AuditOptions(
        permutations=options.permutations,
        seed=options.seed,
        path=name,
        source=inputs.source,
        notes=inputs.notes,
    )
    return audit(subject, inputs.items, chosen)


def _brief(result: dict[str, Any]) -> dict[str, Any]:
    """Drop what the report does not show and would make it large: single hypotheses, full paths."""
    model = result["model"]
    model["path"] = Path(model["path"]).name
    for layer in result["layers"]:
        for owner in [layer, *layer["heads"]]:
            for certificate in owner.get("certificates", ()):
                certificate.pop("hypotheses", None)
    if result.get("twin") is not None:
        result["twin"] = _brief(result["twin"])
        result["twin"]["model"]["path"] = "untrained twin"
    return result


# --- simulating ------------------------------------------------------------------------------


def _flows(
    checkpoint: Checkpoint, found: Scan | None, options: ReportOptions, parts: _Parts
) -> tuple[FlowFrames, ...]:
    if found is None or options.flows < 1:
        parts.missing["flows"] = "there is no scan" if found is None else "none was asked for"
        return ()
    width = checkpoint.architecture.stacks[0].d_model
    if width > WIDEST_FLOW:
        parts.missing["flows"] = f"heads {width} wide; flows are drawn up to {WIDEST_FLOW}"
        return ()
    parts.step("simulating heads")
    ranked = sorted(found.heads(), key=lambda pair: pair[1].expansion_index)
    n_low = min((options.flows + 1) // 2, len(ranked))
    n_high = min(options.flows // 2, len(ranked) - n_low)
    kept = ranked[:n_low] + ranked[len(ranked) - n_high :]
    flows = []
    for layer, head in kept:
        try:
            place = (layer.stack, layer.layer, head.head)
            flows.append(_flow(checkpoint, place, options))
        except InputError as error:  # one kind of head: the others would fail in the same way
            parts.missing["flows"] = str(error)
            break
    return tuple(flows)


def _flow(
    checkpoint: Checkpoint, place: tuple[str, int, int], options: ReportOptions
) -> FlowFrames:
    stack, layer, number = place
    head = load_layer(checkpoint, layer, stack=stack).head(number)
    speed = HeadMaps.of(head).speed_limit  # no token grows faster than exp(speed t)
    until = options.flow_growth / speed if speed > 0 else 1.0
    setup = Setup(n_tokens=FLOW_TOKENS, until=until, rtol=1e-4, seed=options.seed)
    system, start = build(setup, system_of_heads([head]))
    saved = SimulationOptions(rtol=setup.rtol, n_saved=FLOW_FRAMES, max_steps=FLOW_STEPS)
    trajectory = simulate(system, start, until=setup.until, options=saved)
    title = f"{stack} {layer}.{number}"
    picture = flow_picture(trajectory, title=title, n_frames=FLOW_FRAMES, system=system)
    foreseen = predict(system, start)
    return FlowFrames(
        stack=stack,
        layer=layer,
        head=number,
        times=tuple(picture.times.tolist()),
        positions=tuple(
            tuple((x, y) for x, y in frame) for frame in picture.plane.positions.tolist()
        ),
        clusters=tuple(picture.labels.tolist()),
        ending=picture.ending,
        predicted=f"{foreseen.fate.value} ({foreseen.source.value}): {foreseen.why}",
        notes=picture.notes,
    )
