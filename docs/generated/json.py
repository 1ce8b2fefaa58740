"""Tables of docs/json.md: every object of the JSON, with its fields, types and meanings."""

import json
import tempfile
import types
import typing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from generated.meanings import MECHANISMS, SCAN, SCORES
from generated.tables import table

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.cli.demo_model import write_demo_model
from orbitlens.running import info
from orbitlens.scanning import scan_result
from orbitlens.scanning.api import scan
from orbitlens.scanning.options import ScanOptions
from orbitlens.theory import certificates
from orbitlens.tracing import mechanism_result

PLAIN = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}


def _type_in_words(kind: Any) -> str:  # noqa: ANN401 - any annotation
    if kind in PLAIN:
        return PLAIN[kind]
    if is_dataclass(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return ", ".join(f"`{member.value}`" for member in kind)
    inner = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return " or ".join(_type_in_words(part) for part in inner)
    if typing.get_origin(kind) is tuple and inner[-1] is Ellipsis:
        return f"list of {_type_in_words(inner[0])}"
    if typing.get_origin(kind) is tuple:
        return f"list of {len(inner)}: {', '.join(_type_in_words(part) for part in inner)}"
    return f"object of {_type_in_words(inner[-1])}s"  # a mapping from names


def _described(kind: type, meanings: dict[str, str]) -> list[tuple[str, str, str]]:
    """Return name, type and meaning of each field; a field without a meaning is an error."""
    names = [field.name for field in fields(kind)]
    if set(names) != set(meanings):
        raise ValueError(f"{kind.__name__}: {set(names) ^ set(meanings)} differ from meanings.py")
    return [(f"`{x.name}`", _type_in_words(x.type), meanings[x.name]) for x in fields(kind)]


def scan_objects() -> str:
    """Return a section for every object of a scan."""
    sections = []
    for name, meanings in SCAN.items():
        homes = (scan_result, certificates, info)
        kind = next(getattr(home, name) for home in homes if hasattr(home, name))
        rows = _described(kind, meanings)
        sections.append(f"## {name}\n\n" + table(["Field", "Type", "Meaning"], rows))
    return "\n\n".join(sections)


def mechanism_objects() -> str:
    """Return one table of all objects of `trace --mechanisms`."""
    _described(mechanism_result.HeadScores, SCORES)
    rows = []
    for name, meanings in MECHANISMS.items():
        first = f"**{name}**"
        for field, _, meaning in _described(getattr(mechanism_result, name), meanings):
            rows.append((first, field, meaning))
            first = ""
    return table(["Object", "Field", "Meaning"], rows)


def example() -> str:
    """Return the JSON of the demo model's first layer and head, lists cut short."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = load_checkpoint(write_demo_model(Path(folder) / "demo-model"))
        data = scan(checkpoint, ScanOptions(context=256)).to_json()
    data["model"]["path"] = "demo-model"
    data["cost"] |= {"seconds": 0.1, "peak_rss_bytes": 300_000_000}  # of one run, rounded
    data["layers"] = data["layers"][:1]
    layer = data["layers"][0]
    layer["heads"] = layer["heads"][:1]
    for part in (layer, layer["heads"][0]):
        part["certificates"] = part["certificates"][-1:]
    return f"```json\n{json.dumps(_rounded(data), indent=2, ensure_ascii=False)}\n```"


def _rounded(value: Any) -> Any:  # noqa: ANN401 - JSON holds anything
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
