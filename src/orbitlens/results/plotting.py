"""The optional package behind `plot()`, and the look that all its figures share.

Of what was measured, orange spreads and blue gathers: told apart by every kind of colour vision
(Okabe and Ito, 2008).
"""

from typing import Any

from orbitlens.draw.figure import BLUE, INK, ORANGE
from orbitlens.errors import MissingPackageError

SPREAD, GATHER = ORANGE, BLUE
LOOK = {
    "template": "plotly_white",
    "font": {"color": INK},
    "margin": {"l": 60, "r": 20, "t": 60, "b": 50},
}


def graph_objects() -> Any:  # noqa: ANN401 - plotly ships no types
    """Return plotly's module of figures.

    Raises:
        MissingPackageError: plotly is not installed.
    """
    try:
        import plotly.graph_objects
    except ImportError as error:
        raise MissingPackageError("plot() needs plotly: pip install 'orbitlens[plot]'") from error
    return plotly.graph_objects
