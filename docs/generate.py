"""Write what programs compute into the pages of the documentation, or check that it is current.

    python docs/generate.py                  # rewrite what is out of date
    python docs/generate.py --check          # fail if anything is
    python docs/generate.py docs/trace.md    # one page

The Python blocks of a page run in order, in one namespace and in a scratch folder, so that every
example works; `<!-- not run: WHY -->` on the line in front exempts one. What stands between
`<!-- generated: NAME -->` and `<!-- end generated -->` is written by this script:

    output           what the Python block above prints
    sample output    the same, where it differs between machines: written once, not compared
    $ COMMAND        the command, and what it prints
    NAME             what the function of this name in docs/generated/PAGE.py returns
    MODULE.NAME      what a function that several pages share returns

Numbers may differ between machines by one in their last digit, rounding errors (below 1e-9) and
what a command cost (s, MB) by anything: a block that differs by no more is current, and stays as it
is. Whatever takes minutes, or depends on the machine, is read from a stored file.
"""

import argparse
import contextlib
import difflib
import importlib
import io
import multiprocessing
import os
import re
import shlex
import subprocess
import sys
import tempfile
import traceback
import types
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from textwrap import fill

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
BLOCK = re.compile(
    r"^(?P<exempt><!-- not run: [^\n]+ -->\n+)?```python\n(?P<code>.*?)^```$"
    r"|^<!-- generated: (?P<name>[^\n]+) -->\n(?P<body>.*?)^<!-- end generated -->$",
    re.MULTILINE | re.DOTALL,
)
COST = re.compile(r"[\d.,]+(?= (?:s|ms|KB|MB|GB)\b)")
NUMBER = re.compile(r"([-+−]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)")
ROUNDING = 1e-9
WIDTH = 100
SAMPLE = "sample output"


def all_pages() -> list[Path]:
    """Return the pages in which something runs."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
    return [page for page in pages if BLOCK.search(page.read_text(encoding="utf-8"))]


class Session:
    """One page being written: the namespace of its examples, and what the last one printed."""

    def __init__(self, page: Path) -> None:
        """Start with an empty namespace."""
        self.page = page
        parts = page.relative_to(DOCS if page.is_relative_to(DOCS) else ROOT).with_suffix("").parts
        self.name = "_".join(parts).replace("-", "_").lower()
        self.module = types.ModuleType(f"page_{self.name}")  # `json` is taken
        self.printed = ""

    def run(self, code: str, first_line: int) -> None:
        """Run one Python block; a traceback gives the line of the page."""
        padded = "\n" * (first_line - 1) + code
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(compile(padded, str(self.page), "exec"), self.module.__dict__)
        self.printed = folded(out.getvalue())

    def content(self, name: str) -> str:
        """Return what belongs into the block of this name."""
        if name in {"output", SAMPLE}:
            return f"```text\n{self.printed}\n```"
        if name.startswith("$ "):
            return f"```console\n{name}\n{command_output(name[2:])}\n```"
        module, _, function = name.rpartition(".")
        functions = importlib.import_module(f"generated.{module or self.name}")
        return getattr(functions, function)().strip("\n")

    def replace(self, match: re.Match[str]) -> str:
        """Return a block as it should stand in the page."""
        if match["name"] is None:
            if not match["exempt"]:
                self.run(match["code"], match.string.count("\n", 0, match.start("code")) + 1)
            return match[0]
        body = f"\n{self.content(match['name'])}\n\n"
        is_kept = match["name"] == SAMPLE and match["body"].strip()
        if is_kept or is_current(match["body"], body):
            return match[0]
        return f"<!-- generated: {match['name']} -->\n{body}<!-- end generated -->"


def command_output(command: str) -> str:
    """Return what an `orbitlens` command prints, errors included, 100 columns wide, no colour."""
    program, *arguments = shlex.split(command)
    if program != "orbitlens":
        raise ValueError(f"{command}: only orbitlens commands are run")
    start = "import sys; sys.argv[0] = 'orbitlens'; from orbitlens.cli.app import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", start, *arguments],
        capture_output=True,
        encoding="utf-8",
    )
    if done.returncode == 1:  # 2 is an error that a page may show, 1 is a bug
        raise RuntimeError(f"{command}\n{done.stdout}{done.stderr}")
    return folded(done.stdout + (done.stderr if done.returncode else ""))  # else: what it was at


def folded(text: str) -> str:
    """Return a text without blanks at the ends of lines; sentences are folded, tables are not."""
    lines = [line.rstrip() for line in text.rstrip().splitlines()]
    return "\n".join(fill(line, WIDTH) if "  " not in line else line for line in lines)


def is_current(old: str, new: str) -> bool:
    """Whether two texts differ in the last digits of numbers at most."""
    before, after = (NUMBER.split(COST.sub("", text)) for text in (old, new))
    if len(before) != len(after) or before[::2] != after[::2]:
        return False
    return all(map(is_near, before[1::2], after[1::2]))


def is_near(old: str, new: str) -> bool:
    """Whether two printed numbers agree to one in the last digit; whole numbers must be equal."""
    if old == new:
        return True
    if not all("." in text or "e-" in text for text in (old, new)):
        return False
    one, two = (float(text.replace("−", "-")) for text in (old, new))
    unit = max(last_digit(old), last_digit(new))
    return abs(one - two) < 1.5 * unit or max(abs(one), abs(two)) < ROUNDING


def last_digit(text: str) -> float:
    """Return the worth of the last digit of a printed number."""
    digits, _, exponent = text.partition("e")
    return 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))


def written(page: Path) -> str:
    """Return a page with its generated blocks as they should be; run in a process of its own."""
    os.environ |= {"COLUMNS": str(WIDTH), "NO_COLOR": "1", "PYTHONUTF8": "1"}
    os.environ["OMP_NUM_THREADS"] = "1"  # for matrices this small, one is fastest
    os.environ["ORBITLENS_CACHE"] = ""
    sys.path[:0] = [str(DOCS), str(ROOT / "tests")]
    session = Session(page)
    sys.modules[session.module.__name__] = session.module
    with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
        return BLOCK.sub(session.replace, page.read_text(encoding="utf-8"))


def main() -> None:
    """Write or check the pages asked for; all of them by default."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=lambda name: Path(name).resolve())
    parser.add_argument("--check", action="store_true", help="change nothing; fail if out of date")
    parser.add_argument("--jobs", type=int, default=2, help="pages at a time")
    asked = parser.parse_args()
    pages = asked.pages or all_pages()
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(asked.jobs, mp_context=fresh, max_tasks_per_child=1) as pool:
        tasks = {page: pool.submit(written, page) for page in pages}
        stale = [page for page, task in tasks.items() if not settled(page, task, asked.check)]
    if stale:
        raise SystemExit(f"{len(stale)} of {len(pages)} pages need care: python docs/generate.py")
    print(f"{len(pages)} pages are current")


def settled(page: Path, task: Future[str], check: bool) -> bool:
    """Write a page, or compare it; whether it is now as it should be."""
    name, old = str(page.relative_to(ROOT)), page.read_text(encoding="utf-8")
    if (error := task.exception()) is not None:
        print(f"{name}: an example failed", *traceback.format_exception(error), sep="\n")
        return False
    new = task.result()
    if new != old and check:
        lines = old.splitlines(), new.splitlines()
        print("\n".join(difflib.unified_diff(*lines, name, "as it should be", lineterm="")))
        return False
    if new != old:
        page.write_text(new, encoding="utf-8")
        print(f"{name}: rewritten")
    return True


if __name__ == "__main__":
    main()
