"""Models -> ReportData: run scan, trace, audit and simulations; what fails is said, not fatal.

Enters: the paths of models and `ReportOptions`. Leaves: `ReportData`. A path that is no model
raises; a part that a model does not allow is None, with its reason in `missing`.
"""

import platform
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import InputError
from orbitlens.families.architecture import Position
from orbitlens.order.audit import AuditOptions, audit
from orbitlens.order.audit_result import Audit
from orbitlens.order.subject import make_subject
from orbitlens.reporting.compact import brief, brief_control, fold_reasons
from orbitlens.reporting.data import FlowFrames, ModelReport, ReportData
from orbitlens.reporting.flows import WIDEST_FLOW, chosen_heads, flow_frames
from orbitlens.reporting.inputs import Material, ReportOptions, material
from orbitlens.reporting.measured import Measured, Parts, Step
from orbitlens.reporting.spectra import spectra, weights_of
from orbitlens.reporting.words import in_words
from orbitlens.running.loading import load_model, threads_for
from orbitlens.scanning.headmap import ScanOptions, scan
from orbitlens.scanning.scan_result import Scan


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


def _gather_model(
    checkpoint: Checkpoint, name: str, options: ReportOptions, step: Step
) -> ModelReport:
    parts = Parts(step)
    shared = {stack.name: weights_of(stack) for stack in checkpoint.architecture.stacks}
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
    measured = Measured(checkpoint, running, given, options, parts)
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
    shapes = parts.attempt(
        "spectra", "computing spectra", lambda: spectra(checkpoint, options.context)
    )
    shuffled = measured.shuffled
    found, clauses = (None, ()) if scanned is None else fold_reasons(brief(scanned.to_json()))
    return ModelReport(
        name=name,
        words=tuple(in_words(scanned, trace, audited, shared=shared)),
        scan=found,
        clauses=clauses,
        trace=None if trace is None else brief(trace.to_json()),
        shuffled=None if shuffled is None else brief_control(shuffled.to_json()),
        bands=measured.bands,
        audit=None if audited is None else audited.to_json(),
        flows=flows,
        spectra=shapes or (),
        weights_of=shared,
        orbits=measured.orbits(),
        missing=parts.missing,
        notes=given.notes if given is not None else (),
    )


def _scan_options(
    checkpoint: Checkpoint, options: ReportOptions, measured: Measured
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


# --- simulating ------------------------------------------------------------------------------


def _flows(
    checkpoint: Checkpoint, found: Scan | None, options: ReportOptions, parts: Parts
) -> tuple[FlowFrames, ...]:
    if found is None or options.flows == 0:
        parts.missing["flows"] = "there is no scan" if found is None else "none was asked for"
        return ()
    width = checkpoint.architecture.stacks[0].d_model
    if width > WIDEST_FLOW:
        parts.missing["flows"] = f"heads {width} wide; flows are drawn up to {WIDEST_FLOW}"
        return ()
    parts.step("simulating heads")
    flows = []
    for layer, head in chosen_heads(checkpoint, found, options.flows):
        try:
            flows.append(flow_frames(checkpoint, (layer.stack, layer.layer, head.head), options))
        except InputError as error:  # one kind of head: the others would fail in the same way
            parts.missing["flows"] = str(error)
            break
    return tuple(flows)
