"""Newer Pythons, where installed, read every file without a warning; `make pythons` runs them."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
COMPILE = """
import sys, warnings
from pathlib import Path
warnings.simplefilter("error")
files = [file for place in sys.argv[1:] for file in sorted(Path(place).rglob("*.py"))]
for file in files:
    compile(file.read_text(encoding="utf-8"), str(file), "exec")
print(len(files))
"""


def pythons(version):
    """Return the interpreters of a version, those of pyenv included."""
    on_path = shutil.which(f"python{version}")
    own = sorted((Path.home() / ".pyenv" / "versions").glob(f"{version}.*/bin/python"))
    return [*map(str, own), *([on_path] if on_path else [])]


@pytest.mark.parametrize("version", ["3.12", "3.13"])
def test_every_source_file_compiles_without_a_warning(version):
    for python in pythons(version):
        command = [python, "-c", COMPILE, str(ROOT / "src"), str(ROOT / "papers" / "src")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if "command not found" in ran.stderr:  # pyenv's stand-in for a version that is not chosen
            continue
        assert ran.returncode == 0, ran.stderr
        assert int(ran.stdout) > 300
        return
    pytest.skip(f"Python {version} is not installed")
