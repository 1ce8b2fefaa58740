"""The flow of many small systems at once, from the formulas of theory section 1 alone.

Enters: systems of one shape, as the numbers of a `System`. Leaves: attention weights, velocities
and trajectories, in NumPy and SciPy. Nothing is shared with the code that certifies or simulates: a
rotary score is x_i^T W(m) x_j with a matrix for every offset m, value maps are whole matrices.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import solve_ivp

from orbitlens.families.architecture import Pairing, RotarySpec
from orbitlens.flows.system import Geometry, Mask, System

Array = NDArray[np.float64]
RTOL, ATOL = 1e-8, 1e-10
STEPS = 120  # evaluations of a trajectory, at most, in units of a dozen


@dataclass(frozen=True, kw_only=True)
class Maps:
    """One system as arrays: score_ij = x_i M_ij x_j + left_ij . x_j + right_ij . x_i + bias_ij."""

    pair: Array  # heads x n x n x d x d
    left: Array  # heads x n x n x d
    right: Array  # heads x n x n x d
    bias: Array  # heads x n x n; minus infinity where a token is not seen
    value: Array  # heads x d x d, acting on columns
    drift: Array  # d
    is_unit: bool  # tokens keep length 1
    sees_unit: bool  # attention sees tokens divided by their length
    gives_unit: bool  # attention's output is divided by its length

    @classmethod
    def of(cls, system: System, n: int) -> "Maps":
        """Write out a system for n tokens."""
        h, d, r = system.w_q.shape
        w_q, w_k = system.w_q.numpy() * system.beta, system.w_k.numpy()
        b_q = np.zeros((h, r)) if system.b_q is None else system.b_q.numpy() * system.beta
        b_k = np.zeros((h, r)) if system.b_k is None else system.b_k.numpy()
        offsets = np.arange(n)[None, :] - np.arange(n)[:, None]  # j - i
        turns = np.array([[_turn(system.rotary, r, m) for m in row] for row in offsets.tolist()])
        geometry = system.geometry
        return cls(
            pair=np.einsum("hda,ijab,heb->hijde", w_q, turns, w_k),
            left=np.einsum("ha,ijab,heb->hije", b_q, turns, w_k),
            right=np.einsum("hda,ijab,hb->hijd", w_q, turns, b_k),
            bias=_bias(system, offsets) + np.einsum("ha,ijab,hb->hij", b_q, turns, b_k),
            value=np.einsum("hdr,hre->hed", system.w_v.numpy(), system.w_o.numpy()),
            drift=np.zeros(d) if system.drift is None else system.drift.numpy(),
            is_unit=geometry in {Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT},
            sees_unit=geometry in {Geometry.PRE_LN, Geometry.PERI_LN},
            gives_unit=geometry in {Geometry.PERI_LN, Geometry.NGPT},
        )

    @property
    def speed(self) -> float:
        """A bound on |dx/dt| for tokens of length 1."""
        norms = sum(float(np.linalg.norm(v, 2)) for v in self.value)
        return norms + float(np.linalg.norm(self.drift))


def _turn(spec: RotarySpec | None, width: int, offset: int) -> Array:
    """Return R(m): plane k turns by m base^(-2k / d_rotary)."""
    turn = np.eye(width)
    half = 0 if spec is None else spec.d_rotary // 2
    for k in range(half):
        assert spec is not None
        a, b = (k, k + half) if spec.pairing is Pairing.HALVES else (2 * k, 2 * k + 1)
        angle = offset * spec.base ** (-2.0 * k / spec.d_rotary)
        turn[a, a] = turn[b, b] = math.cos(angle)
        turn[a, b], turn[b, a] = -math.sin(angle), math.sin(angle)
    return turn


def _bias(system: System, offsets: NDArray[np.int64]) -> Array:
    slopes = np.zeros(system.n_heads)
    if system.alibi_slopes is not None:
        slopes = system.beta * system.alibi_slopes.numpy()
    bias = -slopes[:, None, None] * np.abs(offsets)
    hidden = offsets > 0 if system.mask is Mask.CAUSAL else np.zeros(offsets.shape, dtype=bool)
    if system.window is not None:
        hidden = hidden | (np.abs(offsets) >= system.window)
    return np.where(hidden, -np.inf, bias)


def start_of(system: System, tokens: Array) -> Array:
    """Return where tokens start: with positions added, on the sphere where they live there."""
    x = tokens if system.positions is None else tokens + system.positions.numpy()
    unit = system.geometry in {Geometry.SPHERE, Geometry.POST_LN, Geometry.NGPT}
    return x / np.linalg.norm(x, axis=1, keepdims=True) if unit else x


class SystemBatch:
    """Systems of one shape, side by side."""

    def __init__(self, systems: Sequence[Maps]) -> None:
        """Stack the systems."""
        self._pair, self._left, self._right, self._bias, self._value, self._drift = (
            np.stack([getattr(s, name) for s in systems])
            for name in ("pair", "left", "right", "bias", "value", "drift")
        )
        flags = np.array([[s.is_unit, s.sees_unit, s.gives_unit] for s in systems])
        self._is_unit, self._sees_unit, self._gives_unit = flags.T[:, :, None, None]
        # x_i M_ij x_j for all pairs is a product of x_i x_j^T with M_ij, entry by entry.
        b, h, n, _, d, _ = self._pair.shape
        self._flat = self._pair.reshape(b, h, n, n, d * d)

    def weights(self, x: Array) -> Array:
        """Return attention: systems x heads x n x n."""
        return self._weights(np.where(self._sees_unit, _unit(x), x))

    def _weights(self, seen: Array) -> Array:
        b, n, d = seen.shape
        outer = (seen[:, :, None, :, None] * seen[:, None, :, None, :]).reshape(b, n, n, d * d)
        scores = np.einsum("bhijk,bijk->bhij", self._flat, outer) + self._bias
        scores += np.einsum("bhijd,bjd->bhij", self._left, seen)
        scores += np.einsum("bhijd,bid->bhij", self._right, seen)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(weights / weights.sum(axis=-1, keepdims=True))

    def velocity(self, x: Array) -> Array:
        """Return dx/dt: systems x n x d."""
        seen = np.where(self._sees_unit, _unit(x), x)
        values = np.einsum("bhed,bjd->bhje", self._value, seen)
        out = np.einsum("bhij,bhje->bie", self._weights(seen), values) + self._drift[:, None, :]
        out = np.where(self._gives_unit, _unit(out), out)
        along = (x * out).sum(axis=-1, keepdims=True) * x
        return np.asarray(np.where(self._is_unit, out - along, out))

    def solve(self, x: Array, times: Array, scale: Array) -> Array | None:
        """Return tokens at times / scale, each system in its own time: times x systems x n x d.

        None where a trajectory takes too long or leaves the floats.
        """
        size = np.abs(x).max(axis=(1, 2), keepdims=True)
        size = np.where(size > 0, size, 1.0)
        shape, pace = x.shape, scale[:, None, None] * size
        evaluations = 0

        def field(_: float, y: Array) -> Array:
            nonlocal evaluations
            evaluations += 1
            if evaluations > STEPS * 12:
                raise _TooLongError
            return np.asarray((self.velocity(y.reshape(shape) * size) / pace).ravel())

        try:
            solved = solve_ivp(
                field, (0.0, times[-1]), (x / size).ravel(), "DOP853", times, rtol=RTOL, atol=ATOL
            )
        except _TooLongError:
            return None
        if not solved.success:
            return None
        path = solved.y.T.reshape(-1, *shape) * size
        return path if bool(np.isfinite(path).all()) else None


class _TooLongError(Exception):
    """The integration takes more evaluations than a trajectory is given."""


def _unit(x: Array) -> Array:
    return np.asarray(x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-300))
