"""Clusters: the connected components of tokens linked by gaps shorter than a radius.

Enters: points. Leaves: a label for each.
"""

from typing import no_type_check

import numpy as np

from orbitlens.running._compiled.compiling import compiled


@no_type_check
@compiled(nogil=True)
def connected_labels(points, radius):
    """Return the component of each point: neighbours share a label, and so do theirs.

    Each token leaves the list of the unlabelled once: gathered tokens take linear time, scattered
    ones quadratic, and memory is linear.
    """
    n, d = points.shape
    labels = np.empty(n, dtype=np.int64)
    unlabelled, edge = np.arange(n), np.empty(n, dtype=np.int64)
    n_unlabelled, label, most = n, 0, radius * radius
    while n_unlabelled > 0:
        edge[0] = unlabelled[0]
        unlabelled[0] = unlabelled[n_unlabelled - 1]
        n_unlabelled, n_edge = n_unlabelled - 1, 1
        while n_edge > 0:
            n_edge -= 1
            here = edge[n_edge]
            labels[here] = label
            m = 0
            while m < n_unlabelled:
                other, square = unlabelled[m], 0.0
                for c in range(d):
                    square += (points[here, c] - points[other, c]) ** 2
                    if square > most:  # after a coordinate or two, for most
                        break
                if square <= most:
                    edge[n_edge] = other
                    n_edge += 1
                    n_unlabelled -= 1
                    unlabelled[m] = unlabelled[n_unlabelled]
                else:
                    m += 1
        label += 1
    return labels
