"""Models -> Report: run scan, trace, audit and simulations; what fails is noted, not fatal.

Enters: models, inputs and `ReportOptions`. Leaves: a `Report`. A path that is no model
raises; a part that a model does not allow is None, with its reason in `missing`.
"""

import platform
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from orbitlens.errors import InputError
from orbitlens.families.architecture import Position
from orbitlens.order.api import audit
from orbitlens.order.audit_result import Audit
from orbitlens.order.options import AuditOptions
from orbitlens.reporting.compact import brief_audit, brief_control, brief_scan, brief_trace
from orbitlens.reporting.cuts import cut_report
from orbitlens.reporting.data import FlowFrames, ModelReport, ReportSettings, rounded
from orbitlens.reporting.flows import FLOW_TOKENS, WIDEST_FLOW, chosen_heads, flow_frames
from orbitlens.reporting.material import Material, ReportInputs, material_of
from orbitlens.reporting.measured import Measured, Parts, Step
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.reach import reach_report
from orbitlens.reporting.report import Report
from orbitlens.reporting.spectra import spectra_of, weights_of
from orbitlens.running.model import Model, load
from orbitlens.running.threads import threads_for, threads_for_pairs
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from orbitlens.scanning.scan_result import Scan


def gather_report(
    models: Sequence[Any],
    options: ReportOptions | None = None,
    *,
    given: ReportInputs | None = None,
    step: Step | None = None,
    ready: Step | None = None,
) -> Report:
    """Run everything on every model.

    Args:
        models: each a `Model`, or anything `load` takes.
        options: how much to compute.
        given: what to run the models on.
        step: called with what is about to be done.
        ready: called with the first sentence of each part when it is done.

    Raises:
        OrbitlensError: one of them is no model.
    """
    chosen, inputs = options or ReportOptions(), given or ReportInputs()
    inputs.check()
    if not models:
        raise InputError("no model was given. Expected at least one.")
    opened = [load(model) for model in models]  # complains before anything runs
    names = _names([model.name for model in opened])
    say, tell = step or _silent, ready or _silent
    reports = []
    for model, name in zip(opened, names, strict=True):
        with threads_for(model.n_parameters):
            parts = Parts(partial(_say, say, name), partial(_say, tell, name))
            reports.append(_gather_model(model, name, inputs, chosen, parts))
    return Report(models=tuple(reports), settings=_settings(inputs, chosen), versions=_versions())


def _silent(what: str) -> None:
    """Say nothing."""


def _say(say: Step, name: str, what: str) -> None:
    say(f"{name}: {what}")


def _names(names: Sequence[str]) -> list[str]:
    """Return names that differ."""
    return [name if names.count(name) == 1 else f"{name} ({k + 1})" for k, name in enumerate(names)]


def _settings(given: ReportInputs, options: ReportOptions) -> ReportSettings:
    return ReportSettings(
        **given.names(),
        max_tokens=options.max_tokens,
        context=options.context,
        samples=options.samples,
        permutations=options.permutations,
        flows=options.flows,
        controls=options.controls,
        seed=options.seed,
    )


def _versions() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "orbitlens": version("orbitlens"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def _gather_model(
    model: Model, name: str, inputs: ReportInputs, options: ReportOptions, parts: Parts
) -> ModelReport:
    shared = {stack.name: weights_of(stack) for stack in model.architecture.stacks}
    given = None
    if parts.attempt("model", "loading", lambda: model.module) is not None:
        given = parts.attempt(
            "model", "reading inputs", lambda: material_of(model, inputs, options)
        )
    why = parts.missing.get("model", "")
    measured = Measured(given, options, parts)
    trace = measured.trace()
    scanned = parts.attempt(
        "scan", "scanning", lambda: scan(model, _scan_options(model, options, measured))
    )
    audited = reach = cut = None
    if given is not None:
        audited = parts.attempt("audit", "auditing", lambda: _audit(given, options))
        reach = parts.attempt(
            "reach", "running longer contexts", lambda: reach_report(given, options.seed)
        )
        if options.cut:
            cut = parts.attempt(
                "cut", "running without parts", lambda: cut_report(given, options.seed)
            )
    if given is None:
        parts.missing |= dict.fromkeys(("trace", "audit", "orbits", "reach"), why)
    flows = _flows(model, scanned, options, parts)
    shapes = parts.attempt(
        "spectra", "computing spectra", lambda: spectra_of(model, options.context)
    )
    shuffled = measured.shuffled
    return rounded(
        ModelReport(
            name=name,
            scan=None if scanned is None else brief_scan(scanned, name),
            trace=None if trace is None else brief_trace(trace, name),
            shuffled=None if shuffled is None else brief_control(shuffled, name),
            bands=measured.bands,
            audit=None if audited is None else brief_audit(audited, name),
            flows=flows,
            spectra=shapes or (),
            weights_of=shared,
            orbits=measured.orbits(),
            missing=parts.missing,
            notes=(*model.notes, *given.inputs.notes) if given is not None else (),
            reach=reach,
            cut=cut,
        )
    )


def _scan_options(model: Model, options: ReportOptions, measured: Measured) -> ScanOptions:
    rotary = any(s.position is Position.ROTARY for s in model.architecture.stacks)
    return ScanOptions(
        context=options.context if rotary else None, covariances=measured.covariances or None
    )


def _audit(given: Material, options: ReportOptions) -> Audit:
    """Return what `audit` says of the same inputs with the same options, whatever is traced."""
    chosen = AuditOptions(
        samples=options.samples, permutations=options.permutations, seed=options.seed
    )
    return audit(given.model, given.inputs, options=chosen)


# --- simulating ------------------------------------------------------------------------------


def _flows(
    model: Model, scanned: Scan | None, options: ReportOptions, parts: Parts
) -> tuple[FlowFrames, ...]:
    if scanned is None or options.flows == 0:
        parts.missing["flows"] = "there is no scan" if scanned is None else "none was asked for"
        return ()
    width = model.architecture.stacks[0].d_model
    if width > WIDEST_FLOW:
        parts.missing["flows"] = f"heads {width} wide; flows are drawn up to {WIDEST_FLOW}"
        return ()
    parts.step("simulating heads")
    flows = []
    for layer, head in chosen_heads(model, scanned, options.flows):
        try:
            with threads_for_pairs(FLOW_TOKENS**2):  # what is said of a flow is small work, too
                flows.append(flow_frames(model, (layer.stack, layer.layer, head.head), options))
        except InputError as error:  # one kind of head: the others would fail in the same way
            parts.missing["flows"] = str(error)
            break
    return tuple(flows)
