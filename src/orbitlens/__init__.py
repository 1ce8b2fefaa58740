"""orbitlens: where tokens go in a Transformer, and which reorderings it cannot tell apart.

checkpoint = orbitlens.load_checkpoint("path/or/hub-name")
scan = orbitlens.scan(checkpoint)
print(scan.layers[3].heads[7].expansion_index)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.checkpoint.opened import Checkpoint
    from orbitlens.errors import OrbitlensError
    from orbitlens.explaining.api import ExplainOptions, Explanation, explain
    from orbitlens.explaining.graph import graph_of_attention
    from orbitlens.heads.head import Head, make_head
    from orbitlens.heads.layers import AttentionLayer, load_layer, position_table
    from orbitlens.order.defect import assert_equivariant, assert_invariant, permutation_defect
    from orbitlens.scanning.headmap import ScanOptions, scan
    from orbitlens.scanning.scan_result import Scan
    from orbitlens.theory.certificates import head_certificates
    from orbitlens.theory.positional import positional_drift, rotary_effect
    from orbitlens.theory.rates import head_rates, layer_rates, predicted_log_change

    # Named, not imported: layers below `report` import this file.
    ReportOptions: Any  # `orbitlens.reporting.inputs.ReportOptions`
    report: Any  # `orbitlens.reporting.notebook.make_report`

__version__ = "0.1.0"

# Where each public name lives. Names are imported when first used: torch takes over a second to
# load, and `orbitlens --help` must not wait for it.
_HOMES = {
    "AttentionLayer": "heads.layers",
    "Checkpoint": "checkpoint.opened",
    "ExplainOptions": "explaining.api",
    "Explanation": "explaining.api",
    "Head": "heads.head",
    "OrbitlensError": "errors",
    "ReportOptions": "reporting.inputs",
    "Scan": "scanning.scan_result",
    "ScanOptions": "scanning.headmap",
    "assert_equivariant": "order.defect",
    "assert_invariant": "order.defect",
    "explain": "explaining.api",
    "graph_of_attention": "explaining.graph",
    "head_certificates": "theory.certificates",
    "head_rates": "theory.rates",
    "layer_rates": "theory.rates",
    "load_checkpoint": "checkpoint.load",
    "load_layer": "heads.layers",
    "make_head": "heads.head",
    "permutation_defect": "order.defect",
    "position_table": "heads.layers",
    "positional_drift": "theory.positional",
    "predicted_log_change": "theory.rates",
    "rotary_effect": "theory.positional",
    "scan": "scanning.headmap",
}

__all__ = [
    "AttentionLayer",
    "Checkpoint",
    "ExplainOptions",
    "Explanation",
    "Head",
    "OrbitlensError",
    "ReportOptions",
    "Scan",
    "ScanOptions",
    "assert_equivariant",
    "assert_invariant",
    "explain",
    "graph_of_attention",
    "head_certificates",
    "head_rates",
    "layer_rates",
    "load_checkpoint",
    "load_layer",
    "make_head",
    "permutation_defect",
    "position_table",
    "positional_drift",
    "predicted_log_change",
    "report",
    "rotary_effect",
    "scan",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the name stands for
    """Import a public name when it is first used."""
    if name == "report":  # a package that can be called
        return import_module("orbitlens.reporting")
    if name not in _HOMES:
        raise AttributeError(f"module 'orbitlens' has no attribute {name!r}")
    return getattr(import_module(f"orbitlens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__, "__version__"]
