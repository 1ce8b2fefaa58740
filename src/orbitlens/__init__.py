"""orbitlens: where tokens go in a Transformer, and which reorderings it cannot tell apart.

checkpoint = orbitlens.load_checkpoint("path/or/hub-name")
scan = orbitlens.scan(checkpoint)
print(scan.layers[3].heads[7].expansion_index)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitlens.checkpoint.load import load_checkpoint
    from orbitlens.checkpoint.model import Checkpoint
    from orbitlens.errors import OrbitlensError
    from orbitlens.explanation.api import ExplainOptions, Explanation, explain
    from orbitlens.explanation.graph import graph_of_attention
    from orbitlens.headmap import ScanOptions, scan
    from orbitlens.heads import AttentionLayer, Head, load_layer, make_head, position_table
    from orbitlens.scan_result import Scan
    from orbitlens.symmetry.defect import assert_equivariant, assert_invariant, permutation_defect
    from orbitlens.theory.certificates import head_certificates
    from orbitlens.theory.positional import positional_drift, rotary_effect
    from orbitlens.theory.rates import head_rates, layer_rates, predicted_log_change

    # Named, not imported: layers below `report` import this file.
    ReportOptions: Any  # `orbitlens.report.inputs.ReportOptions`
    report: Any  # `orbitlens.report.notebook.make_report`

__version__ = "0.1.0"

# Where each public name lives. Names are imported when first used: torch takes over a second to
# load, and `orbitlens --help` must not wait for it.
_HOMES = {
    "AttentionLayer": "heads",
    "Checkpoint": "checkpoint.model",
    "ExplainOptions": "explanation.api",
    "Explanation": "explanation.api",
    "Head": "heads",
    "OrbitlensError": "errors",
    "ReportOptions": "report.inputs",
    "Scan": "scan_result",
    "ScanOptions": "headmap",
    "assert_equivariant": "symmetry.defect",
    "assert_invariant": "symmetry.defect",
    "explain": "explanation.api",
    "graph_of_attention": "explanation.graph",
    "head_certificates": "theory.certificates",
    "head_rates": "theory.rates",
    "layer_rates": "theory.rates",
    "load_checkpoint": "checkpoint.load",
    "load_layer": "heads",
    "make_head": "heads",
    "permutation_defect": "symmetry.defect",
    "position_table": "heads",
    "positional_drift": "theory.positional",
    "predicted_log_change": "theory.rates",
    "rotary_effect": "theory.positional",
    "scan": "headmap",
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
        return import_module("orbitlens.report")
    if name not in _HOMES:
        raise AttributeError(f"module 'orbitlens' has no attribute {name!r}")
    return getattr(import_module(f"orbitlens.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return [*__all__, "__version__"]
