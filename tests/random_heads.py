"""Random heads and their dense maps, written from the definitions: what the theory is held to.

Everything here is d_model x d_model on purpose. Nothing is shared with the low-rank code under test
but the factors themselves.
"""

import dataclasses

import torch
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from orbitlens.heads.head import make_head

SEEDS = st.integers(0, 2**31)
# The same examples on every run: a failure in CI is a failure here.
PROPERTY = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def normal(source, *shape):
    return torch.randn(*shape, generator=source, dtype=torch.float64)


def orthogonal(source, d):
    q, _ = torch.linalg.qr(normal(source, d, d))
    return q


def random_covariance(source, d):
    root = normal(source, d, d)
    return root @ root.T / d + 0.1 * torch.eye(d, dtype=torch.float64)


def random_head(d, r, seed, *, rank=None, sizes=(1.0, 1.0, 1.0, 1.0), **fields):
    """Return a head of Gaussian factors of given rank, each multiplied by one of `sizes`."""
    source = seeded(seed)
    factors = []
    for size in sizes:
        factor = normal(source, d, r)
        if rank is not None:
            factor = normal(source, d, rank) @ normal(source, rank, r)
        factors.append(size * factor)
    w_q, w_k, w_v, w_o = factors
    return dataclasses.replace(make_head(w_q, w_k, w_v, w_o.T.contiguous()), **fields)


def head_of(w, v, **fields):
    """Return the head of full width whose score map is `w` and whose value map is `v`."""
    eye = torch.eye(w.shape[0], dtype=torch.float64)
    return dataclasses.replace(make_head(w, eye, v.T.contiguous(), eye, scale=1.0), **fields)


def dense_score(head):
    """Return W with scores X W X^T."""
    return head.w_q @ head.w_k.T * head.scale


def dense_value(head):
    """Return V with drift P X V^T."""
    return (head.w_v @ head.w_o).T


def symmetric_part(matrix):
    return (matrix + matrix.T) / 2


def dense_rates(heads, covariance=None):
    """Return all d_model rates: eigenvalues of sym(sum_h V_h S W_h^T)."""
    d = heads[0].d_model
    s = torch.eye(d, dtype=torch.float64) if covariance is None else covariance
    drift = sum(dense_value(head) @ s @ dense_score(head).T for head in heads)
    return torch.linalg.eigvalsh(symmetric_part(drift))


def in_basis(head, q):
    """Return the head after the change of basis x -> x q of the tokens, q orthogonal."""
    return dataclasses.replace(
        head, w_q=q.T @ head.w_q, w_k=q.T @ head.w_k, w_v=q.T @ head.w_v, w_o=head.w_o @ q
    )


def regauged(head, m, n):
    """Return the same maps in other factors: queries and keys turned by m, values by n."""
    return dataclasses.replace(
        head,
        w_q=head.w_q @ m,
        w_k=head.w_k @ torch.linalg.inv(m).T,
        w_v=head.w_v @ n,
        w_o=torch.linalg.inv(n) @ head.w_o,
    )


def zero_head(d, r):
    zero = torch.zeros(d, r, dtype=torch.float64)
    return make_head(zero, zero, zero, zero.T.contiguous())
