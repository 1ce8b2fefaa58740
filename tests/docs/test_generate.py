"""The script that writes computed results into pages: what it runs, and what it calls current."""

import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "docs" / "generate.py"
spec = importlib.util.spec_from_file_location("generate", SCRIPT)
generate = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate)

PAGE = """# A page

```python
x = 6 * 7
print(x)
```

<!-- generated: output -->
{output}
<!-- end generated -->

<!-- not run: it would fail -->
```python
raise SystemExit
```
"""


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    monkeypatch.setattr("os.environ", {})
    path = tmp_path / "page.md"
    path.write_text(PAGE.format(output="nothing yet"))
    return path


def test_an_example_is_run_and_its_output_written_below_it(page):
    assert generate.written(page) == PAGE.format(output="\n```text\n42\n```\n")


def test_a_page_that_is_current_stays_as_it_is(page):
    page.write_text(generate.written(page))
    assert generate.written(page) == page.read_text()


def test_output_that_differs_between_machines_is_written_once(page):
    page.write_text(PAGE.format(output="").replace("generated: output", "generated: sample output"))
    once = generate.written(page)
    assert "\n42\n" in once
    page.write_text(once.replace("42\n", "41\n"))
    assert generate.written(page) == page.read_text()


def test_an_example_that_fails_names_the_line_of_the_page(page):
    page.write_text("# A page\n\n```python\nraise ValueError\n```\n")
    with pytest.raises(ValueError) as error:
        generate.written(page)
    assert (error.traceback[-1].path, error.traceback[-1].lineno + 1) == (page, 4)


@pytest.mark.parametrize(
    ("old", "new", "current"),
    [
        ("index +0.123", "index +0.124", True),
        ("index +0.123", "index +0.126", False),
        ("error 2.1e-15", "error 8.3e-16", True),
        ("error 2e-3", "error 9e-3", False),
        ("48 heads", "49 heads", False),
        ("48 heads", "48 layers", False),
        ("read 132 KB in 0.37 s", "read 132 KB in 1.52 s", True),
        ("−0.00", "+0.00", True),
    ],
)
def test_only_last_digits_rounding_and_costs_may_differ(old, new, current):
    assert generate.is_current(old, new) is current


def test_no_page_hides_what_it_runs():
    pages = SCRIPT.parent.rglob("*.md")
    assert [page.name for page in pages if 'exec="on"' in page.read_text(encoding="utf-8")] == []
