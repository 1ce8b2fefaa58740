"""Write the tutorial as a notebook, without output: examples/gathering_heads.ipynb.

python docs/make_notebook.py            # write it
python docs/make_notebook.py --check    # fail if it is out of date
"""

import json
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE = DOCS / "tutorial.md"
NOTEBOOK = DOCS.parent / "examples" / "gathering_heads.ipynb"
GENERATED = re.compile(r"<!-- generated: .*?<!-- end generated -->\n*", re.DOTALL)
CODE = re.compile(r"^```python\n(.*?)^```$\n*", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!http)([\w./-]+\.md)")


def cells(page: str) -> list[dict[str, object]]:
    """Return text and code in turn; what the page shows of results is left out."""
    parts = CODE.split(LINK.sub(r"](../docs/\1", GENERATED.sub("", page)))
    made = []
    for number, part in enumerate(part.strip("\n") for part in parts):
        if part:
            kind = "code" if number % 2 else "markdown"
            cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
            cell |= {"execution_count": None, "outputs": []} if kind == "code" else {}
            made.append(cell | {"source": part.splitlines(keepends=True)})
    return made


def notebook(page: str) -> str:
    """Return the notebook's file."""
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    data = {"cells": cells(page), "metadata": {"kernelspec": kernel}}
    return (
        json.dumps(data | {"nbformat": 4, "nbformat_minor": 5}, indent=1, ensure_ascii=False) + "\n"
    )


def main() -> None:
    """Write the notebook or check it."""
    new = notebook(PAGE.read_text(encoding="utf-8"))
    if "--check" not in sys.argv:
        NOTEBOOK.write_text(new, encoding="utf-8")
    elif NOTEBOOK.read_text(encoding="utf-8") != new:
        raise SystemExit(f"{NOTEBOOK.name} is out of date: run python docs/make_notebook.py")


if __name__ == "__main__":
    main()
