"""The score map W and the value map V of a head, handled through r x r matrices only.

Enters: a `Head`. Leaves: a `HeadMaps` with norms, inner products and spectra. With factors

    W = L R^T,   V = O U^T        (L, R, O, U of shape d_model x d_head)

every quantity below is a function of the Gram blocks X^T Y of these four; nothing d x d is formed
(theory section 3, "Cost").
"""

from dataclasses import dataclass
from functools import cached_property

import torch

from orbitlens._types import ComplexSpectrum, HeadMatrix, InputWeight
from orbitlens.heads.head import Head
from orbitlens.heads.rotary import resolve_rotary, rotation_matrix
from orbitlens.theory.spectrum import eigenvalues, symmetric_eigenvalues


@dataclass(frozen=True)
class HeadMaps:
    """The four factors of a head and, computed once when asked for, their Gram blocks."""

    left: InputWeight  # L: queries, the scale included
    right: InputWeight  # R: keys
    out: InputWeight  # O
    value: InputWeight  # U

    @classmethod
    def of(cls, head: Head, turn: HeadMatrix | None = None) -> "HeadMaps":
        """Return the maps of a head; `turn` stands between query and key, T(0) if not given."""
        left, right = head.score_factors
        w_v, w_o = head.value_factors
        if turn is None and head.rotary is not None:
            rotation = resolve_rotary(head.rotary, 1)
            # T(0) is the identity but for the factor that YaRN and LongRoPE put on scores.
            turn = None if rotation.factor == 1.0 else rotation_matrix(rotation, 0.0)
        if turn is not None:
            left = left @ turn.to(left)
        return cls(left=left, right=right, out=w_o.T, value=w_v)

    @property
    def d_model(self) -> int:
        """Width of the tokens."""
        return self.left.shape[0]

    @property
    def rank(self) -> int:
        """Largest rank W and V can have: d_head, or d_model where heads are wider than tokens."""
        return min(self.left.shape)

    # Gram blocks; names say which factors: `out_left` is O^T L.

    @cached_property
    def left_left(self) -> HeadMatrix:
        """L^T L."""
        return self.left.T @ self.left

    @cached_property
    def right_right(self) -> HeadMatrix:
        """R^T R."""
        return self.right.T @ self.right

    @cached_property
    def out_out(self) -> HeadMatrix:
        """O^T O."""
        return self.out.T @ self.out

    @cached_property
    def value_value(self) -> HeadMatrix:
        """U^T U."""
        return self.value.T @ self.value

    @cached_property
    def out_left(self) -> HeadMatrix:
        """O^T L."""
        return _transposed_product(self.out, self.left)

    @cached_property
    def value_right(self) -> HeadMatrix:
        """U^T R."""
        return _transposed_product(self.value, self.right)

    @cached_property
    def value_out(self) -> HeadMatrix:
        """U^T O."""
        return _transposed_product(self.value, self.out)

    @cached_property
    def right_left(self) -> HeadMatrix:
        """R^T L."""
        return _transposed_product(self.right, self.left)

    # --- norms and inner products ---

    @cached_property
    def score_norm(self) -> float:
        """Frobenius norm of W."""
        return _root((self.left_left * self.right_right).sum().item())

    @cached_property
    def value_norm(self) -> float:
        """Frobenius norm of V."""
        return _root((self.out_out * self.value_value).sum().item())

    @cached_property
    def inner_product(self) -> float:
        """<V, W> = tr(V^T W): positive where the two maps are aligned, negative where opposed."""
        return (self.out_left * self.value_right).sum().item()

    @property
    def alignment(self) -> float:
        """<V, W> / (|V| |W|), in [-1, 1]; 0 for a head that does nothing."""
        return _ratio(self.inner_product, self.value_norm * self.score_norm)

    @property
    def score_symmetry(self) -> float:
        """(|sym W|^2 - |anti W|^2) / |W|^2 = tr(W^2) / |W|^2: 1 symmetric, -1 antisymmetric."""
        square = (self.right_left * self.right_left.T).sum().item()
        return _ratio(square, self.score_norm**2)

    @cached_property
    def speed_limit(self) -> float:
        """|V|_2, the largest singular value of V: no token grows faster (T5)."""
        half = matrix_root(self.value_value)
        largest = symmetric_eigenvalues(half.T @ self.out_out @ half)[-1]
        return _root(largest.item())

    # --- spectra ---

    @cached_property
    def value_spectrum(self) -> ComplexSpectrum:
        """Eigenvalues of V that its rank does not force to zero: those of the r x r U^T O."""
        if self.left.shape[1] > self.d_model:  # then U^T O has zeros that V does not
            return eigenvalues(self.out @ self.value.T)
        return eigenvalues(self.value_out)

    @property
    def value_abscissa(self) -> float:
        """Largest real part of an eigenvalue of V, the zeros its rank forces included."""
        largest = self.value_spectrum.real.max().item()
        return max(largest, 0.0) if self._has_kernel else largest

    @property
    def value_radius(self) -> float:
        """Largest modulus of an eigenvalue of V."""
        return self.value_spectrum.abs().max().item()

    @property
    def copying(self) -> float:
        """Sum of V's eigenvalues over the sum of their moduli, in [-1, 1]: 1 copies tokens."""
        return _ratio(self.value_out.trace().item(), self.value_spectrum.abs().sum().item())

    @cached_property
    def alignment_form(self) -> HeadMatrix:
        """Return sym(U^T U O^T L R^T U), which has the signs of sym(V^T W) where V acts.

        The form z -> z^T V^T W z on the row space of V, z = U a: by congruence its signs are those
        of the alignment A = W V^+ on the range of V, and no inverse is needed.
        """
        form = self.value_value @ self.out_left @ self.value_right.T
        return (form + form.T) / 2

    @cached_property
    def alignment_signs(self) -> tuple[int, int]:
        """Number of positive and of negative directions of the alignment on the range of V."""
        values = symmetric_eigenvalues(self.alignment_form)
        floor = 1e-12 * values.abs().max()
        return int((values > floor).sum()), int((values < -floor).sum())

    @property
    def _has_kernel(self) -> bool:
        return self.left.shape[1] < self.left.shape[0]


def _transposed_product(x: InputWeight, y: InputWeight) -> HeadMatrix:
    """Return X^T Y, by way of (Y^T X)^T where BLAS would have to turn both around."""
    # Rows against columns is the one layout that takes twice as long; `make_head` may give it.
    if x.stride(0) > x.stride(1) and y.stride(0) < y.stride(1):
        return (y.T @ x).T
    return x.T @ y


def matrix_root(gram: HeadMatrix) -> HeadMatrix:
    """Return F with F F^T = gram: Cholesky where that is safe, else the symmetric square root."""
    factor, info = torch.linalg.cholesky_ex(gram)
    if info.item() == 0:
        diagonal = factor.diagonal()
        if diagonal.min() > 1e-6 * diagonal.max():
            return factor
    values, vectors = torch.linalg.eigh(gram)
    return vectors * values.clamp(min=0).sqrt()


def _root(value: float) -> float:
    return max(value, 0.0) ** 0.5


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator > 0 else 0.0
