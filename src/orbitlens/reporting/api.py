"""`report`: everything about one or more models, as one page that needs no network.

Enters: models and inputs. Leaves: a `Report`.
"""

from typing import Any

from orbitlens.reporting.gather import gather_report
from orbitlens.reporting.material import ReportInputs
from orbitlens.reporting.measured import Step
from orbitlens.reporting.options import ReportOptions
from orbitlens.reporting.report import Report


def report(  # noqa: PLR0913 - three kinds of input, two listeners
    model: Any,  # noqa: ANN401 - a `Model`, what `load` takes, or a list of them
    text: Any = None,  # noqa: ANN401 - what `inputs_of` takes
    *,
    images: Any = None,  # noqa: ANN401
    tokens: Any = None,  # noqa: ANN401
    options: ReportOptions | None = None,
    step: Step | None = None,
    ready: Step | None = None,
) -> Report:
    """Run scan, trace, audit and simulations on models, and return the report.

    Args:
        model: a `Model`, anything `load` takes, or a list of them, which are compared.
        text: for models that read text; by default the package's passage.
        images: for models that look at images.
        tokens: token ids in place of a text.
        options: how much to compute.
        step: called with what is about to be done.
        ready: called with the first sentence of each part when it is done.

    Raises:
        OrbitlensError: one of them is no model.
    """
    models = list(model) if isinstance(model, (list, tuple)) else [model]
    given = ReportInputs(text=text, images=images, tokens=tokens)
    return gather_report(models, options, given=given, step=step, ready=ready)
