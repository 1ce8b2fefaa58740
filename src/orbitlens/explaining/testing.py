"""Tests of independence from correlations: Fisher's z of a partial correlation.

Enters: a matrix of correlations, how many samples it stands for. Leaves: p-values.
"""

import math
from collections.abc import Iterable

import numpy as np
from jaxtyping import Float

Node = int | np.int64  # structure learners count by NumPy's integers


class FisherZ:
    """Tests on one matrix; each is made once."""

    def __init__(self, correlation: Float[np.ndarray, "nodes nodes"], samples: int) -> None:
        """Take correlations in the place of data."""
        self.correlation = correlation
        self.samples = samples
        self.known: dict[tuple[int, int, frozenset[int]], float] = {}

    def p_value(self, first: Node, second: Node, given: Iterable[Node] = ()) -> float:
        """Return the p-value of independence given a set."""
        a, b = sorted((int(first), int(second)))
        key = (a, b, frozenset(int(node) for node in given))
        if key not in self.known:
            self.known[key] = self._p_value(a, b, sorted(key[2]))
        return self.known[key]

    def _p_value(self, a: int, b: int, given: list[int]) -> float:
        chosen = [a, b, *given]
        inverse = np.linalg.inv(self.correlation[np.ix_(chosen, chosen)])
        partial = -inverse[0, 1] / math.sqrt(inverse[0, 0] * inverse[1, 1])
        partial = min(max(partial, -1 + 1e-15), 1 - 1e-15)
        z = math.atanh(partial) * math.sqrt(self.samples - len(given) - 3)
        return math.erfc(abs(z) / math.sqrt(2))
