"""The folders of the source from top to bottom, for the README and CONTRIBUTING."""

import ast
import tomllib
from pathlib import Path

from generated.tables import table

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "orbitlens"


def _phrase(path: Path) -> str:
    """Return the first line of a module's docstring."""
    text = (path / "__init__.py" if path.is_dir() else path).read_text(encoding="utf-8")
    first = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return first.removesuffix(".").replace("|", r"\|")


def _place(name: str) -> Path:
    folder = SOURCE / name
    return folder if folder.is_dir() else SOURCE / f"{name}.py"


def from_the_top() -> str:
    """Return the layers as the import contract has them, each with what its docstring says."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contract = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    rows = []
    for layer in contract:
        for place in (_place(name.strip()) for name in layer.split(":")):
            name = f"{place.name}/" if place.is_dir() else place.name
            rows.append((f"[`{name}`](src/orbitlens/{place.name})", _phrase(place)))
    return table(["In `src/orbitlens/`", "What it does"], rows)
