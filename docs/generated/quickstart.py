"""What docs/quickstart.md shows of examples/."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "examples" / "scan_model.py"


def script() -> str:
    """Return what the script prints for the demo model."""
    done = subprocess.run(
        [sys.executable, SCRIPT], stdout=subprocess.PIPE, encoding="utf-8", check=True
    )
    return f"```console\n$ python examples/scan_model.py\n{done.stdout.rstrip()}\n```"
