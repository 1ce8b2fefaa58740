"""The attention SVM: the matrix of least norm that separates selected tokens from the others.

Enters: tokens, queries and selected tokens. Leaves: min |W| such that (x_a - x_t)ᵀ W z >= 1 for all
t but the selected a, in the Frobenius or the nuclear norm, with a proof that no other is smaller:
numbers l >= 0 with |sum l (x_a - x_t) zᵀ| <= 1 in the dual norm bound every feasible W by sum l.
"""

import importlib
import importlib.util
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

from orbitlens.errors import InputError, MissingPackageError

NEEDED = {"cvxpy": "cvxpy", "sklearn": "scikit-learn"}


class Norm(StrEnum):
    """Which norm is smallest."""

    FROBENIUS = "frobenius"
    NUCLEAR = "nuclear"


@dataclass(frozen=True, kw_only=True)
class Solution:
    """A separating matrix of least norm, and how far at most it is from that."""

    w: Float[ndarray, "d_model d_model"]
    gap: float  # |W| over the bound that no feasible matrix is below, less one


def missing() -> str:
    """Say which packages are not there and how to get them; empty where all are."""
    names = [name for module, name in NEEDED.items() if importlib.util.find_spec(module) is None]
    if not names:
        return ""
    return f"the attention SVM needs {' and '.join(names)}: pip install {' '.join(names)}"


def check_packages() -> None:
    """Refuse to solve without a solver.

    Raises:
        MissingPackageError: cvxpy or scikit-learn is not installed.
    """
    reason = missing()
    if reason:
        raise MissingPackageError(f"{reason}.")


def solve(
    tokens: Float[Tensor, "sample tokens d_model"],
    queries: Float[Tensor, "sample d_model"],
    chosen: Int[Tensor, " sample"],
    *,
    norm: Norm,
    solver: str = "CLARABEL",
) -> Solution:
    """Return the separating matrix of least norm.

    Raises:
        InputError: nothing separates these tokens.
        MissingPackageError: the solver is not installed.
    """
    check_packages()
    cp: Any = importlib.import_module("cvxpy")

    basis, reduced = _basis(queries)
    features = _features(tokens, reduced, chosen)
    n, d, r = features.shape
    w = cp.Variable((d, r))
    margins = features.reshape(n, d * r) @ cp.vec(w, order="C")
    separated = [margins >= 1]
    size = cp.sum_squares(w) if norm is Norm.FROBENIUS else cp.norm(w, "nuc")
    options = {"eps": 1e-7, "max_iters": 50_000} if solver == "SCS" else {}
    cp.Problem(cp.Minimize(size), separated).solve(solver=solver, **options)
    if w.value is None:
        raise InputError(
            f"no matrix separates the {len(chosen)} chosen tokens from the others; choose tokens "
            "that some matrix selects, or wider tokens."
        )
    solution = np.asarray(w.value)
    bound = lower_bound(features, np.asarray(separated[0].dual_value), norm=norm)
    worst = float((features * solution).sum(axis=(1, 2)).min())
    return Solution(w=solution @ basis.T, gap=size_of(solution, norm) / worst / bound - 1)


def solve_sets(
    tokens: Float[Tensor, "sample tokens d_model"],
    queries: Float[Tensor, "sample d_model"],
    kept: Bool[Tensor, "sample tokens"],
) -> Float[Tensor, "d_model d_model"] | None:
    """Return the matrix of least Frobenius norm that keeps several tokens a sample on top.

    All that are kept have one score, and every other token is below that by one or more. None where
    no matrix does that.
    """
    check_packages()
    cp: Any = importlib.import_module("cvxpy")

    basis, reduced = _basis(queries)
    first = kept.int().argmax(dim=1)
    features = _features(tokens, reduced, first)
    n, d, r = features.shape
    w = cp.Variable((d, r))
    margins = features.reshape(n, d * r) @ cp.vec(w, order="C")
    equal = np.concatenate(
        [np.delete(row, a) for row, a in zip(kept.numpy(), first.tolist(), strict=True)]
    )
    conditions = [margins[~equal] >= 1] if not equal.all() else []
    conditions += [margins[equal] == 0] if equal.any() else []
    problem = cp.Problem(cp.Minimize(cp.sum_squares(w)), conditions)
    problem.solve(solver="CLARABEL")
    if problem.status != "optimal":
        return None
    return torch.from_numpy(np.asarray(w.value) @ basis.T)


def size_of(w: Float[ndarray, "d_model rank"], norm: Norm) -> float:
    """Return the norm of a matrix."""
    return float(np.linalg.norm(w, "fro" if norm is Norm.FROBENIUS else "nuc"))


def lower_bound(
    features: Float[ndarray, "constraint d_model rank"],
    multipliers: Float[ndarray, " constraint"],
    *,
    norm: Norm,
) -> float:
    """Return what no feasible matrix is smaller than, by weak duality; any multipliers will do."""
    weights = np.clip(multipliers, 0.0, None)
    total = np.tensordot(weights, features, axes=1)
    dual = np.linalg.norm(total, "fro" if norm is Norm.FROBENIUS else 2)
    return float(weights.sum() / dual)


def gap_of(
    w: Float[ndarray, "d_model d_model"],
    tokens: Float[Tensor, "sample tokens d_model"],
    queries: Float[Tensor, "sample d_model"],
    chosen: Int[Tensor, " sample"],
    *,
    norm: Norm,
) -> float:
    """Return by how much a feasible matrix exceeds the least norm, relative."""
    best = solve(tokens, queries, chosen, norm=norm)
    features = _features(tokens, queries.numpy(), chosen)
    least = size_of(best.w, norm) / float((features * best.w).sum(axis=(1, 2)).min())
    own = size_of(w, norm) / float((features * w).sum(axis=(1, 2)).min())
    return own / least - 1


def by_classifier(
    tokens: Float[Tensor, "sample tokens d_model"],
    queries: Float[Tensor, "sample d_model"],
    chosen: Int[Tensor, " sample"],
) -> Float[ndarray, "d_model d_model"]:
    """Return the Frobenius solution by a classifier of scikit-learn, as a cross-check.

    The matrices (x_a - x_t) zᵀ are one class, their negatives the other: the widest margin between
    the two has no offset, and its normal is the same W.
    """
    check_packages()
    from sklearn.svm import SVC

    features = _features(tokens, queries.numpy(), chosen)
    n, d, _ = features.shape
    rows = features.reshape(n, d * d)
    model = SVC(kernel="linear", C=1e6, tol=1e-8)
    model.fit(np.concatenate([rows, -rows]), np.repeat([1, -1], n))
    return np.asarray(model.coef_).reshape(d, d)


def _basis(queries: Tensor) -> tuple[Float[ndarray, "d_model rank"], Float[ndarray, "sample rank"]]:
    """Return an orthonormal basis of the queries, and them in it.

    Both norms do not grow when W is projected onto it, and no constraint notices.
    """
    _, values, rows = np.linalg.svd(queries.numpy(), full_matrices=False)
    basis = rows[values > 1e-12 * values[0]].T
    return basis, queries.numpy() @ basis


def _features(
    tokens: Tensor, queries: Float[ndarray, "sample rank"], chosen: Tensor
) -> Float[ndarray, "constraint d_model rank"]:
    """Return (x_a - x_t) zᵀ for every sample and every token but the selected one."""
    x = tokens.numpy()
    rows = [
        np.outer(x[i, a] - x[i, t], queries[i])
        for i, a in enumerate(chosen.tolist())
        for t in range(x.shape[1])
        if t != a
    ]
    return np.stack(rows)
