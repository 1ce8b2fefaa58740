"""The alignment of a head: a symmetric A with A V = W, how far from it the head is, and its signs.

Enters: `HeadMaps`. Leaves: an `Alignment` (docs/certificates.md, "The alignment of a head"). Most
heads fail by much, which Gram matrices show at once; where they do not, A is built and what A V
misses of W is measured: the margin that T1 and T2 have against tolerances and rounding.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.theory.eigenpairs import EPS, Matrix
from orbitlens.theory.maps import HeadMaps

COARSE = 1e-5  # shares beyond which a head is not aligned, as Gram matrices see them
EQUALITY = 1e-9  # share of W that A V may miss


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """How near a head is to W = A V with A symmetric and definite."""

    leak: float  # share of W that V's kernel does not kill: A V = W is impossible unless 0
    asymmetry: float  # |anti(V^T W)| / |V^T W|
    definiteness: float  # in [-1, 1]; positive iff the form is definite
    is_positive: bool  # the sign it is nearer to
    missed: float  # |W - A V|_2, rounding included; infinite where no A was built
    smallest: float  # smallest and largest modulus of the eigenvalues of A
    largest: float
    score_norm: float  # |W|_2

    @classmethod
    def of(cls, maps: HeadMaps) -> "Alignment":
        """Read a head's alignment."""
        basis = _row_basis(maps)
        eigenvalues = torch.linalg.eigvalsh(basis.T @ maps.alignment_form @ basis).tolist() or [0.0]
        low, high = eigenvalues[0], eigenvalues[-1]
        size = max(-low, high)
        leak, asymmetry = _leak(maps, basis), _asymmetry(maps)
        definiteness = max(low, -high) / size if size > 0 else 0.0
        built = None
        if leak < COARSE and asymmetry < COARSE and definiteness > 0:
            built = _built(maps, sign=1.0 if low >= -high else -1.0)
        missed, smallest, largest, score = built or (float("inf"), 0.0, 0.0, maps.score_norm)
        return cls(
            leak=leak,
            asymmetry=asymmetry,
            definiteness=definiteness,
            is_positive=low >= -high,
            missed=missed,
            smallest=smallest,
            largest=largest,
            score_norm=score,
        )

    @property
    def holds(self) -> bool:
        """Whether W = A V, but for the share that counts as rounding."""
        return self.missed <= EQUALITY * self.score_norm and self.smallest > 0


def _built(maps: HeadMaps, sign: float) -> tuple[float, float, float, float] | None:
    """Return |W - A V|, the ends of |A|'s spectrum and |W|, for the A of the docs' lemma.

    A is fixed on the range of V and from there to its complement; on the complement it is chosen
    definite. The residual is what counts, so it is computed in the longest floats there are.
    """
    factors = [f.detach().cpu().numpy() for f in (maps.out, maps.left, maps.value, maps.right)]
    out, left, value, right = factors
    lost = 0.0
    if 2 * maps.left.shape[1] < maps.d_model:  # in orthonormal bases of what is written and read
        writes = np.linalg.qr(np.concatenate([out, left], axis=1))[0]
        reads = np.linalg.qr(np.concatenate([value, right], axis=1))[0]
        out, left, value, right = writes.T @ out, writes.T @ left, reads.T @ value, reads.T @ right
        lost = EPS
    out, left, value, right = (f.astype(np.longdouble) for f in (out, left, value, right))
    v, w = out @ value.T, left @ right.T
    a = _symmetric_solution(v.astype(np.float64), w.astype(np.float64), sign)
    if a is None:
        return None
    moduli = sign * np.linalg.eigvalsh(a)
    sizes = [float(np.linalg.norm(f)) for f in factors]
    whole = sizes[1] * sizes[3] + float(np.abs(moduli).max()) * sizes[0] * sizes[2]
    lost = 10 * len(a) * max(lost, float(np.finfo(np.longdouble).eps)) * whole
    missed = float(np.linalg.norm((w - a @ v).astype(np.float64), 2)) * (1 + 1e-9) + lost
    score = float(np.linalg.norm(w.astype(np.float64), 2))
    return missed, float(moduli.min()), float(moduli.max()), score


def _symmetric_solution(v: Matrix, w: Matrix, sign: float) -> Matrix | None:
    turned, stretch, back = np.linalg.svd(v)
    rank = int((stretch > 1e-10 * stretch[0]).sum())
    inside, outside = turned[:, :rank], turned[:, rank:]
    image = w @ back[:rank].T / stretch[:rank]  # A on the range of V
    within = inside.T @ image
    within = (within + within.T) / 2
    values = sign * np.linalg.eigvalsh(within)
    if values.min() <= 0:
        return None
    across = outside.T @ image
    beyond = across @ np.linalg.solve(within, across.T)
    beyond = (beyond + beyond.T) / 2 + sign * values.min() * np.eye(outside.shape[1])
    basis = np.concatenate([inside, outside], axis=1)
    blocks = np.block([[within, across.T], [across, beyond]])
    made = basis @ blocks @ basis.T
    return np.asarray((made + made.T) / 2)


def _row_basis(maps: HeadMaps) -> Float[Tensor, "d_head rank"]:
    """Return X with U X an orthonormal basis of the span of U, so that no gauge matters in it."""
    eigenvalues, vectors = torch.linalg.eigh(maps.value_value)
    kept = eigenvalues > 1e-12 * eigenvalues[-1]
    return vectors[:, kept] * eigenvalues[kept].rsqrt()


def _leak(maps: HeadMaps, basis: Float[Tensor, "d_head rank"]) -> float:
    """Return |W - W V^+ V| / |W|: what of R lies outside the span of U."""
    if maps.score_norm == 0 or maps.value_norm == 0:
        return 1.0
    inside = basis.T @ maps.value_right
    outside = maps.right_right - inside.T @ inside
    square = (maps.left_left * outside).sum().item()
    return max(square, 0.0) ** 0.5 / maps.score_norm


def _asymmetry(maps: HeadMaps) -> float:
    """Return |anti(M)| / |M| for M = V^T W = U E R^T, E = O^T L."""
    e = maps.out_left
    square = ((e.T @ maps.value_value @ e) * maps.right_right).sum().item()
    inner = maps.value_right.T @ e
    twist = (inner * inner.T).sum().item()
    return max((square - twist) / 2, 0.0) ** 0.5 / square**0.5 if square > 0 else 0.0
