"""orbitlens: where tokens go in a Transformer, and which reorderings it cannot tell apart.

import orbitlens as ol

model = ol.load("path, .gguf file, hub name or zoo name")  # or a live torch module
ol.scan(model)                  ol.trace(model, "some text")   ol.audit(model, "some text")
ol.simulate(model.head(3, 7))   ol.explain(model, "some text") ol.report(model, "some text")
ol.positions(model, "some text") ol.cut(model, "some text")   ol.explore(model)
ol.forecast(config)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitlens.cutting.api import cut
    from orbitlens.cutting.cut_result import Cut
    from orbitlens.cutting.options import CutOptions
    from orbitlens.encodings.api import positions
    from orbitlens.encodings.options import PositionsOptions, ReachOptions
    from orbitlens.encodings.positions_result import Positions
    from orbitlens.errors import (
        AuditError,
        CheckpointError,
        InputError,
        MissingPackageError,
        OrbitlensError,
        ResultError,
        UnknownFamilyError,
    )
    from orbitlens.explaining.api import ExplainOptions, explain
    from orbitlens.explaining.explanation import Explanation
    from orbitlens.exploring.api import Explorer, explore
    from orbitlens.flows.setup import SimulateOptions
    from orbitlens.flows.simulation import Simulation, simulate
    from orbitlens.forecasting.api import forecast
    from orbitlens.forecasting.blueprint import Blueprint
    from orbitlens.forecasting.forecast_result import ArchitectureForecast
    from orbitlens.order.api import audit
    from orbitlens.order.audit_result import Audit
    from orbitlens.order.defect import assert_equivariant, assert_invariant
    from orbitlens.order.options import AuditOptions
    from orbitlens.reporting.api import report
    from orbitlens.reporting.options import ReportOptions
    from orbitlens.reporting.report import Report
    from orbitlens.running.model import Model, load
    from orbitlens.scanning.api import scan
    from orbitlens.scanning.options import ScanOptions
    from orbitlens.scanning.scan_result import Scan
    from orbitlens.surveying.api import atlas
    from orbitlens.surveying.atlas_result import Atlas
    from orbitlens.surveying.options import AtlasOptions
    from orbitlens.tracing.api import trace
    from orbitlens.tracing.options import TraceOptions
    from orbitlens.tracing.trace_result import Trace
    from orbitlens.watching.api import Watch
    from orbitlens.watching.looking import watched
    from orbitlens.watching.watched_run import WatchedRun

__version__ = "0.1.0"

# Where each public name lives. Names are imported when first used: torch takes over a second to
# load, and `orbitlens --help` must not wait for it.
_HOMES = {
    "ArchitectureForecast": "forecasting.forecast_result",
    "Atlas": "surveying.atlas_result",
    "AtlasOptions": "surveying.options",
    "Audit": "order.audit_result",
    "AuditError": "errors",
    "AuditOptions": "order.options",
    "Blueprint": "forecasting.blueprint",
    "CheckpointError": "errors",
    "Cut": "cutting.cut_result",
    "CutOptions": "cutting.options",
    "ExplainOptions": "explaining.api",
    "Explanation": "explaining.explanation",
    "Explorer": "exploring.api",
    "InputError": "errors",
    "MissingPackageError": "errors",
    "Model": "running.model",
    "OrbitlensError": "errors",
    "ResultError": "errors",
    "Positions": "encodings.positions_result",
    "PositionsOptions": "encodings.options",
    "ReachOptions": "encodings.options",
    "Report": "reporting.report",
    "ReportOptions": "reporting.options",
    "Scan": "scanning.scan_result",
    "ScanOptions": "scanning.options",
    "SimulateOptions": "flows.setup",
    "Simulation": "flows.simulation",
    "Trace": "tracing.trace_result",
    "TraceOptions": "tracing.options",
    "UnknownFamilyError": "errors",
    "Watch": "watching.api",
    "WatchedRun": "watching.watched_run",
    "assert_equivariant": "order.defect",
    "assert_invariant": "order.defect",
    "atlas": "surveying.api",
    "audit": "order.api",
    "cut": "cutting.api",
    "explain": "explaining.api",
    "explore": "exploring.api",
    "forecast": "forecasting.api",
    "load": "running.model",
    "positions": "encodings.api",
    "report": "reporting.api",
    "scan": "scanning.api",
    "simulate": "flows.simulation",
    "trace": "tracing.api",
    "watched": "watching.looking",
}

__all__ = [
    "ArchitectureForecast",
    "Atlas",
    "AtlasOptions",
    "Audit",
    "AuditError",
    "AuditOptions",
    "Blueprint",
    "CheckpointError",
    "Cut",
    "CutOptions",
    "ExplainOptions",
    "Explanation",
    "Explorer",
    "InputError",
    "MissingPackageError",
    "Model",
    "OrbitlensError",
    "Positions",
    "PositionsOptions",
    "ReachOptions",
    "Report",
    "ReportOptions",
    "ResultError",
    "Scan",
    "ScanOptions",
    "SimulateOptions",
    "Simulation",
    "Trace",
    "TraceOptions",
    "UnknownFamilyError",
    "Watch",
    "WatchedRun",
    "assert_equivariant",
    "assert_invariant",
    "atlas",
    "audit",
    "cut",
    "explain",
    "explore",
    "forecast",
    "load",
    "positions",
    "report",
    "scan",
    "simulate",
    "trace",
    "watched",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'orbitlens' has no attribute {name!r}")
    return getattr(import_module(f"orbitlens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__, "__version__"]
