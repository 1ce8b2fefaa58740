"""Table of docs/scale.md, from the stored run of benchmarks/sizes.py."""

import json
from pathlib import Path
from typing import Any

from generated.tables import table

STORED = Path(__file__).resolve().parents[1] / "sizes.json"


def sizes() -> str:
    """Return one row a shape: measured, expected, and the goals."""
    stored: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    columns = ("shape", "layers read", "read of", "a layer", "its products", "ratio (≤ 1.5)",
               "expected", "peak memory", "300 MB + 3 layers", "expected")  # fmt: skip
    rows = []
    for name, case in stored["cases"].items():
        said = stored["extrapolated"].get(name, {})
        rows.append(
            [
                name,
                f"{len(case['layers'])} of {case['n_layers']}",
                f"{case['bytes_read'] / 1e9:.2f} of {case['bytes_total'] / 1e9:.1f} GB",
                f"{case['seconds_a_layer']:.1f} s",
                f"{case['products_seconds']:.1f} s",
                f"{case['ratio']:.2f}{'' if case['time_met'] else ', missed'}",
                f"{said['seconds_a_layer']:.1f} s" if "seconds_a_layer" in said else "–",
                f"{case['peak_bytes'] / 1e6:.0f} MB",
                f"{case['memory_limit'] / 1e6:.0f} MB{'' if case['memory_met'] else ', missed'}",
                f"{said['peak_bytes'] / 1e6:.0f} MB" if "peak_bytes" in said else "–",
            ]
        )
    return table(columns, rows)
