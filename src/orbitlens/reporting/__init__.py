"""Results -> pictures and pages that work without a network.

The package can be called: `orbitlens.reporting("path/of/a/model")` makes a report, which a notebook
shows. It is a package and a function at once, since both would bear this name.
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitlens.reporting.notebook import Report


class _Callable(ModuleType):
    def __call__(self, *models: Any, options: Any = None) -> "Report":  # noqa: ANN401
        """Make a report; see `orbitlens.reporting.notebook.make_report`."""
        from orbitlens.reporting.notebook import make_report

        return make_report(*models, options=options)


sys.modules[__name__].__class__ = _Callable
