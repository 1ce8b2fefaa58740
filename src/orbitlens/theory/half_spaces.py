"""Half-spaces: is there a hyperplane through 0 with all tokens on one side, and how far from it?

Enters: tokens. Leaves: the normal w of length 1 that is farthest, min_i w . x_i at its largest
over unit tokens, or None. Whatever the search did, the margin is that of the w it returned.
"""

import numpy as np
from scipy.optimize import nnls

from orbitlens.theory.eigenpairs import EPS, Matrix, Vector

CLEAR = 1e-6  # margin, relative to a token's length, below which a side is not a side


def half_space(tokens: Matrix) -> tuple[Vector, float] | None:
    """Return a unit w with w . x_i > 0 for all tokens, and the smallest w . x_i / |x_i|.

    w points to the point of the convex hull of x_i / |x_i| that is nearest to 0 (Lawson and Hanson,
    Solving Least Squares Problems, chapter 23): the least |sum_i l_i x_i|^2 + (1 - sum_i l_i)^2.
    """
    lengths = np.linalg.norm(tokens, axis=1)
    if not np.isfinite(lengths).all() or lengths.min() <= 0:
        return None
    units = tokens / lengths[:, None]
    system = np.concatenate([units.T, np.ones((1, len(units)))])
    weights, _ = nnls(system, np.append(np.zeros(units.shape[1]), 1.0))
    nearest = weights @ units
    size = float(np.linalg.norm(nearest))
    if size <= EPS:
        return None
    w = nearest / size
    margin = float((units @ w).min())
    return (w, margin) if margin > CLEAR else None
