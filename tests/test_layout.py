"""The house: what lies where, how long it is, and that no name means two things."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted((ROOT / "src").rglob("*.py")) + sorted((ROOT / "papers" / "src").rglob("*.py"))
AT_THE_ROOT = {"__init__.py", "_types.py", "errors.py", "files.py", "trajectory.py"}
LONGEST_MODULE = 400  # lines
LONG_FUNCTION = 25  # lines without the docstring, that at most a tenth may have


def functions(file):
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node, clean=False)
            yield node, node.end_lineno - node.lineno + 1 - (text.count("\n") + 1 if text else 0)


def test_nothing_lies_at_the_root_but_the_base():
    assert {file.name for file in (ROOT / "src" / "orbitlens").glob("*.py")} == AT_THE_ROOT


@pytest.mark.parametrize("part", ["src", "papers/src"])
def test_functions_are_short(part):
    lengths = sorted(
        n for file in SOURCES if file.is_relative_to(ROOT / part) for _, n in functions(file)
    )
    assert lengths[int(0.9 * len(lengths))] < LONG_FUNCTION


def test_no_module_is_too_long():
    lengths = {file: file.read_text(encoding="utf-8").count("\n") for file in SOURCES}
    assert {file.name: n for file, n in lengths.items() if n > LONGEST_MODULE} == {}


def test_no_public_function_has_its_modules_name():
    twice = [
        f"{file.relative_to(ROOT)}: {node.name}"
        for file in SOURCES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == file.stem
    ]
    assert twice == []


def test_one_class_of_a_name_in_the_library():
    homes = {}
    for file in SOURCES:
        if file.is_relative_to(ROOT / "src"):
            for node in ast.parse(file.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    homes.setdefault(node.name, []).append(str(file.relative_to(ROOT)))
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


def test_no_import_goes_upwards_by_string():
    """Lazy imports by name are those of the package's own table of public names, and of papers."""
    users = {
        str(file.relative_to(ROOT / "src"))
        for file in SOURCES
        if file.is_relative_to(ROOT / "src") and "import_module(" in file.read_text("utf-8")
    }
    assert users <= {"orbitlens/__init__.py", "orbitlens/orbit/__init__.py"}
