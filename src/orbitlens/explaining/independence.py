"""The search of causal-learn, on correlations instead of data.

Enters: a matrix of correlations, how many samples it stands for, a level. Leaves: the library's
table of marks. Imported when it is needed: causal-learn is optional and takes seconds to load.
"""

import contextlib
import io
from collections.abc import Iterable
from typing import Any

import numpy as np
from causallearn.search.ConstraintBased.FCI import fci
from causallearn.search.ConstraintBased.PC import pc
from causallearn.utils.cit import CIT_Base, register_ci_test
from jaxtyping import Float, Int

from orbitlens.explaining.testing import FisherZ

NAME = "orbitlens-correlations"


class PartialCorrelation(CIT_Base):  # type: ignore[misc,unused-ignore] # ships no types
    """Fisher's z test of a partial correlation, as a test of the library."""

    def __init__(self, data: Float[np.ndarray, "nodes nodes"], samples: int) -> None:
        """Take correlations in the place of data."""
        super().__init__(data)
        self.method = NAME
        self.tests = FisherZ(data, samples)

    def __call__(self, first: Any, second: Any, given: Iterable[Any] | None = None) -> float:  # noqa: ANN401 - integers of NumPy
        """Return the p-value of independence given a set."""
        return self.tests.p_value(first, second, given or ())


class Name(str):
    """A name whose hash is its number.

    The library walks through sets of nodes. The order of a set of plain strings changes from
    process to process, and with it the graph.
    """

    __slots__ = ()

    def __hash__(self) -> int:
        """Return the number."""
        return int(self)


def discovered(
    correlation: Float[np.ndarray, "nodes nodes"], samples: int, alpha: float, *, latents: bool
) -> Int[np.ndarray, "nodes nodes"]:
    """Return the graph that FCI finds, or PC without latents: the code of the mark at the first."""
    register_ci_test(NAME, PartialCorrelation)
    names: Any = [Name(k) for k in range(len(correlation))]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints edges
        if latents:
            result, _ = fci(
                correlation, NAME, alpha, show_progress=False, node_names=names, samples=samples
            )
        else:
            result = pc(
                correlation, alpha, NAME, show_progress=False, node_names=names, samples=samples
            ).G
    return np.asarray(result.graph, dtype=np.int64)
