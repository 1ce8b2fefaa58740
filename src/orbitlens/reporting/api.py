"""`report`: everything about one or more models, as one page that needs no network.

Enters: models and inputs. Leaves: a `Report` with its data, its page and `save`.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from orbitlens.reporting.export import write_result
from orbitlens.reporting.gather import gather
from orbitlens.reporting.material import Given
from orbitlens.reporting.measured import Step
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.page import render
from orbitlens.results.html import frame

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


def report(
    model: Any,  # noqa: ANN401 - a `Model`, what `load` takes, or a list of them
    text: Any = None,  # noqa: ANN401 - what `inputs_of` takes
    *,
    images: Any = None,  # noqa: ANN401
    tokens: Any = None,  # noqa: ANN401
    options: ReportOptions | None = None,
    step: Step | None = None,
) -> Report:
    """Run scan, trace, audit and simulations on models, and return the report.

    Args:
        model: a `Model`, anything `load` takes, or a list of them, which are compared.
        text: for models that read text; by default the package's passage.
        images: for models that look at images.
        tokens: token ids in place of a text.
        options: how much to compute.
        step: called with what is about to be done.

    Raises:
        OrbitlensError: one of them is no model.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    given = Given(text=text, images=images, tokens=tokens)
    return Report(gather(models, options, given=given, step=step).to_json())
