"""Compiled code where nothing can be written, and where it can."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numba
import pytest

import orbitlens
from orbitlens.running._compiled import compiling
from orbitlens.running._compiled.compiling import compiled

SOURCE = Path(orbitlens.__file__).parent
RUN = """
import orbitlens as ol
from orbitlens.flows.clusters import connected_labels
assert connected_labels._cache.__class__.__name__ == "NullCache", connected_labels._cache
print(ol.simulate("aligned", ol.SimulateOptions(n_tokens=4, until=1.0, rtol=1e-4)).outcome)
"""


def test_flows_run_where_neither_the_home_nor_the_package_can_be_written(tmp_path):
    """A file stands where each cache would be, so that even the superuser cannot write there."""
    package = tmp_path / "orbitlens"
    shutil.copytree(SOURCE, package, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (package / "flows", package / "flows" / "_fast", package / "running/_compiled"):
        (folder / "__pycache__").write_text("")
    nowhere = {"HOME": "/dev/null", "XDG_CACHE_HOME": "/dev/null", "PYTHONPATH": str(tmp_path)}
    environment = {**os.environ, **nowhere, "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("NUMBA_CACHE_DIR", None)
    done = subprocess.run(
        [sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["diverging"]


def test_code_is_kept_where_there_is_a_place_for_it():
    """The control: the same function, from a file whose folder can be written."""
    from orbitlens.flows.clusters import connected_labels

    assert type(connected_labels._cache).__name__ == "FunctionCache"


def test_other_refusals_of_numba_are_not_swallowed(monkeypatch):
    def refuse(**options):
        raise RuntimeError("something else")

    monkeypatch.setattr(compiling.numba, "njit", refuse)
    with pytest.raises(RuntimeError, match="something else"):
        compiled()(lambda x: x)
    assert numba.njit is refuse


STALE = """
import sys
sys.path.insert(0, sys.argv[1])
import caller
print(caller.twice(3))
"""


def test_code_that_calls_what_has_changed_is_compiled_anew(tmp_path):
    """Numba alone keeps the caller, with the old function in it: only its own file is looked at."""
    header = "from orbitlens.running._compiled.compiling import compiled\n"
    called = "@compiled()\ndef called(x):\n    return x {} x\n"
    caller = "from called import called\n@compiled()\ndef twice(x):\n    return called(x)\n"
    (tmp_path / "caller.py").write_text(header + caller)
    environment = {k: v for k, v in os.environ.items() if k != "NUMBA_CACHE_DIR"}
    found = []
    for sign in "+*":
        (tmp_path / "called.py").write_text(header + called.format(sign))
        done = subprocess.run(
            [sys.executable, "-c", STALE, str(tmp_path)],
            env=environment, capture_output=True, text=True, check=True,
        )  # fmt: skip
        found.append(int(done.stdout))
    assert found == [6, 9]


def test_current_code_is_not_dropped(tmp_path):
    index = tmp_path / "kept" / "f.nbi"
    index.parent.mkdir()
    for source in ("a.py", "b.py"):
        (tmp_path / source).write_text("")
    index.write_text("")
    os.utime(tmp_path / "b.py", (1, 1))
    newest = (tmp_path / "a.py").stat().st_mtime
    for moment, stays in ((newest + 1, True), (newest - 1, False)):
        os.utime(index, (moment, moment))
        compiling._looked_at.discard(index.parent)
        compiling.drop_stale(tmp_path, index.parent)
        assert index.exists() == stays


def test_an_index_that_another_process_was_quicker_to_drop_is_no_error(tmp_path):
    (tmp_path / "source.py").touch()
    kept = tmp_path / "kept"
    kept.mkdir()
    stale = kept / "stale.nbi"
    stale.touch()
    os.utime(stale, (0, 0))
    (kept / "gone.nbi").symlink_to("nowhere")  # listed, and not there when it is looked at
    compiling.drop_stale(tmp_path, kept)
    assert not stale.exists()
