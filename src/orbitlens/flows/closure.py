"""The Gaussian closure (T6) as a simulator: mean and covariance of a cloud, at once.

Enters: a `System` and the mean and covariance of its tokens. Leaves: both over time, and the time
at which the covariance blows up, if it does. Exact for infinitely many Gaussian tokens under full
attention; with absolute positions and rotary encodings in the forms of theory section 3.

    d/dt mu = sum_h V_h (mu + S (W_h^T mu + c_h)) + b
    d/dt S = B S + S B^T,   B = sum_h V_h S W_h^T
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import solve_ivp
from torch import Tensor

from orbitlens._types import Covariance, ModelVector
from orbitlens.errors import InputError
from orbitlens.flows.steps import Vector
from orbitlens.flows.system import Geometry, Mask, System
from orbitlens.heads.rotary import mean_rotation, resolve_rotary

BLOW_UP = 1e12  # growth of the covariance's trace that counts as infinite


@dataclass(frozen=True, kw_only=True)
class ClosureTrajectory:
    """Mean and covariance over time."""

    times: Float[Tensor, " steps"]
    means: Float[Tensor, "steps d_model"]
    covariances: Float[Tensor, "steps d_model d_model"]
    blow_up: float | None  # the time at which the covariance became infinite


def simulate_closure(
    system: System,
    mean: ModelVector,
    covariance: Covariance,
    *,
    until: float,
    n_context: int | None = None,
    n_saved: int = 65,
) -> ClosureTrajectory:
    """Integrate the closure up to `until`, or to the moment it blows up.

    Args:
        system: a free flow with softmax attention.
        mean: of the tokens at the start.
        covariance: of the tokens at the start.
        until: the time to run.
        n_context: tokens whose offsets a rotary encoding averages over (small scores); such a
            system needs it.
        n_saved: moments kept.

    Raises:
        InputError: the closure is not for this flow, or cannot be integrated.
    """
    _check(system, until, n_context)
    d = system.d_model
    rates = _ClosureRates(system, n_context or 1)
    y0 = np.concatenate([mean.double().numpy(), covariance.double().numpy().ravel()])
    start = max(float(np.trace(covariance.double().numpy())), 1e-300)

    def escaped(t: float, y: Vector) -> float:
        return math.log(BLOW_UP) - math.log(max(np.trace(y[d:].reshape(d, d)) / start, 1e-300))

    escaped.terminal = True  # type: ignore[attr-defined]
    times = np.linspace(0.0, until, n_saved)
    if not np.isfinite(rates(0.0, y0)).all():  # SciPy would look for a first step for ever
        raise InputError("the closure's rates are out of the range of float64 at the start.")
    with np.errstate(all="ignore"):  # a stage that overflows makes the step shorter
        solved = solve_ivp(
            rates, (0.0, until), y0, "DOP853", times, events=escaped, rtol=1e-9, atol=1e-12 * start
        )
    if solved.status < 0:
        raise InputError(
            f"the closure could not be followed to t = {until} ({solved.message}). Its rates may "
            "be too large; ask for a shorter time."
        )
    blown = solved.status == 1
    end = float(solved.t_events[0][0]) if blown else until
    return ClosureTrajectory(
        times=torch.from_numpy(solved.t.copy()),
        means=torch.from_numpy(solved.y[:d].T.copy()),
        covariances=torch.from_numpy(solved.y[d:].T.reshape(-1, d, d).copy()),
        blow_up=end if blown else None,
    )


def _check(system: System, until: float, n_context: int | None) -> None:
    if system.geometry is not Geometry.FREE or system.unnormalised:
        raise InputError("the closure is for free flows with softmax attention.")
    if system.reinjected or system.noise > 0:
        raise InputError("the closure is for flows without noise or re-injected positions.")
    if system.alibi_slopes is not None:
        raise InputError("the closure has no form for ALiBi. Take its slopes out.")
    if system.rotary is not None and (n_context is None or n_context < 1):
        raise InputError(
            "the closure averages a rotary encoding over the offsets of a context: give n_context, "
            "its number of tokens."
        )
    if not 0 < until < math.inf:
        raise InputError(f"the time to run is {until}; expected a positive, finite number.")


class _ClosureRates:
    """The right-hand side of the closure."""

    def __init__(self, system: System, n_context: int) -> None:
        turn = torch.eye(system.d_head, dtype=torch.float64)
        if system.rotary is not None:
            resolved = resolve_rotary(system.rotary, n_context)
            causal = system.mask is Mask.CAUSAL
            turn = mean_rotation(resolved, n_context, causal=causal, window=system.window)
        left = system.beta * system.w_q @ turn
        self.score = left @ system.w_k.transpose(-1, -2)  # W_h, heads x d x d
        self.value = (system.w_v @ system.w_o).transpose(-1, -2)  # V_h
        zero = torch.zeros(system.n_heads, system.d_model, dtype=torch.float64)
        self.shift = zero
        if system.b_q is not None:
            turned = system.beta * system.b_q @ turn
            self.shift = torch.einsum("hdr,hr->hd", system.w_k, turned)
        self.drift = system.drift if system.drift is not None else zero[0]

    def __call__(self, t: float, y: Vector) -> Vector:
        d = self.drift.numel()
        mean, s = torch.from_numpy(y[:d]), torch.from_numpy(y[d:].reshape(d, d))
        pull = torch.einsum("hab,a->hb", self.score, mean) + self.shift
        moved = mean + torch.einsum("ab,hb->ha", s, pull)
        mean_rate = torch.einsum("hab,hb->a", self.value, moved) + self.drift
        b = torch.einsum("hab,bc,hdc->ad", self.value, s, self.score)
        s_rate = b @ s + s @ b.T
        return np.concatenate([mean_rate.numpy(), s_rate.numpy().ravel()])
