"""Shown: results that a notebook can show.

Enters: nothing. Leaves: a base class with `_repr_html_` and `plot`. Results lie below the code that
draws them, so that code is imported by name, when it is asked for: a result knows that it can be
shown, not how.
"""

from importlib import import_module
from typing import Any


class Shown:
    """A result with a view in notebooks."""

    def _repr_html_(self) -> str:
        """Return the result as HTML, which notebooks show by themselves."""
        html: str = import_module("orbitlens.reporting.views").as_html(self)
        return html

    def plot(self) -> Any:  # noqa: ANN401 - a plotly figure; plotly is optional
        """Return the result as a plotly figure, which notebooks show by themselves.

        Raises:
            MissingPackageError: plotly is not installed.
        """
        return import_module("orbitlens.reporting.views").figure(self)
