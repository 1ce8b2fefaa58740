"""Store the summaries of sweeps, which docs/generated/experiments.py prints as tables.

    python docs/make_experiments.py FOLDER    # store the summaries of FOLDER/*.json

FOLDER holds what `orbitlens sweep experiments/NAME.toml --json FOLDER/NAME.json` wrote; summaries
go to docs/experiments.
"""

import json
import os
import platform
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

from make_studies import shorter

DOCS = Path(__file__).resolve().parent
KEPT, PLANS = DOCS / "experiments", DOCS.parent / "experiments"


def keep(folder: Path) -> None:
    """Copy the summaries of sweeps, with where they come from."""
    KEPT.mkdir(exist_ok=True)
    for plan in sorted(PLANS.glob("*.toml")):
        file = folder / f"{plan.stem}.json"
        if not file.is_file():
            print(f"{file}: not there; the stored summary stays as it is")
            continue
        data = json.loads(file.read_text(encoding="utf-8"))
        kept = {
            "date": time.strftime("%Y-%m-%d", time.gmtime(file.stat().st_mtime)),
            "versions": {name: version(name) for name in ("orbitlens", "torch", "transformers")},
            "hardware": f"{platform.machine()}, {os.cpu_count()} cores",
            "plan": tomllib.loads(plan.read_text(encoding="utf-8")),
            "n_runs": len(data["runs"]),
            "failed": data["failed"],
            "summary": shorter(data["summary"]),
        }
        text = json.dumps(kept, indent=1, ensure_ascii=False)
        (KEPT / f"{plan.stem}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit(__doc__)
    keep(Path(sys.argv[1]))
