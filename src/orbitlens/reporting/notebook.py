"""`orbitlens.reporting(...)`: a report as an object, which notebooks show by themselves.

Enters: paths of models. Leaves: a `Report` with its data, its page and `save`.
"""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orbitlens.reporting.data import read_report_json
from orbitlens.reporting.export import write_result
from orbitlens.reporting.gather import gather
from orbitlens.reporting.inputs import ReportOptions
from orbitlens.reporting.page import render
from orbitlens.reporting.views import frame

HEIGHT = 760  # of the frame in a notebook, in pixels


@dataclass(frozen=True)
class Report:
    """A report: `data` is its JSON; a notebook shows the page itself."""

    data: dict[str, Any]

    @cached_property
    def html(self) -> str:
        """The page: one HTML file that needs nothing else."""
        return render(self.data)

    def _repr_html_(self) -> str:
        return frame(self.html, HEIGHT)

    def __repr__(self) -> str:
        """Name the models, not all their numbers."""
        names = ", ".join(model["name"] for model in self.data["models"])
        return f"Report({names}): .save('report.html') writes the page"

    def save(self, file: str | Path) -> Path:
        """Write the page, whole or not at all, and return its path.

        Raises:
            InputError: it cannot be written there.
        """
        target = Path(file).resolve()
        write_result(target, self.html.encode("utf-8"))
        return target


def make_report(*models: str | Path, options: ReportOptions | None = None) -> Report:
    """Run scan, trace, audit and simulations on models, and return the report.

    Args:
        models: folders or hub names; or one file that a report's `--json` or `save` wrote.
        options: how much to compute, and on what.

    Raises:
        OrbitlensError: a path is no model, or the file is no report.
    """
    paths = [str(model) for model in models]
    if len(paths) == 1 and paths[0].endswith((".json", ".html")) and Path(paths[0]).is_file():
        return Report(read_report_json(Path(paths[0])))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    from orbitlens.running.loading import quiet_transformers

    quiet_transformers()
    return Report(gather(paths, options).to_json())
