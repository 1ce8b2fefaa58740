"""Powers of two as tables: what a loop needs to know of 2^x, by tolerance.

Enters: a tolerance. Leaves: tables for `vectors.power`, one row a constant, repeated in all lanes:
the smallest exponent, the number that rounds what it is added to, and the coefficients of a
polynomial for |x| <= 1/2, through the values of 2^x at Chebyshev points.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

LANES = 8  # tokens that are done at once
FULL = (  # relative error 2.0e-17
    1.0,
    0.6931471805599453,
    0.24022650695910158,
    0.055504108664821625,
    0.009618129107587256,
    0.001333355814640647,
    0.00015403530463724353,
    1.5252733841556773e-05,
    1.3215432535912375e-06,
    1.0178057087733941e-07,
    7.074194297288521e-09,
    4.4558179083360645e-10,
)
MIDDLE = (  # relative error 1.8e-14
    1.0000000000000135,
    0.6931471805599462,
    0.2402265069564034,
    0.05550410866465167,
    0.009618129193934313,
    0.0013333558200794592,
    0.0001540343375125101,
    1.5252672924850737e-05,
    1.325964524488711e-06,
    1.0205905413765595e-07,
)
SHORT = (  # relative error 1.1e-12
    1.0,
    0.6931471805459335,
    0.2402265069581299,
    0.05550410941205933,
    0.009618129159402558,
    0.0013333450568000645,
    0.00015403455852453838,
    1.5310079402249296e-05,
    1.3255224878668817e-06,
)
SHORT_FROM = 1e-8  # tolerances from here on have a ten-thousandth of them to spare for SHORT
MIDDLE_FROM = 2e-10  # and from here on for MIDDLE
# Exponents between which a power is a normal number.
LOWEST, HIGHEST = -1021.0, 1023.0


Tables = tuple[NDArray[np.float64], NDArray[np.float64]]


@cache
def power_tables(rtol: float) -> Tables:
    """Return an exact table, and one whose error a tolerance does not notice, for the most part."""
    quick = SHORT if rtol >= SHORT_FROM else MIDDLE if rtol >= MIDDLE_FROM else FULL
    return _table(FULL), _table(quick)


def _table(terms: tuple[float, ...]) -> NDArray[np.float64]:
    rows = np.array((LOWEST, 1.5 * 2.0**52, *terms))
    return np.repeat(rows[:, None], LANES, axis=1)
