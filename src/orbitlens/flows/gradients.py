"""Trajectories that can be differentiated: with respect to the start and to the weights.

Enters: a `System` and tokens, either of which may require gradients. Leaves: tokens at the end. The
adaptive method chooses the steps and keeps where each began; the way back takes each step once more
and multiplies by its Jacobian. So the gradient is that of the numbers returned (a discrete
adjoint), not of an equation solved backwards, and memory grows with the number of steps and not of
stages. Few tokens with heads up to four wide go forth and back in compiled code (`_fast/back.py`,
which says what it leaves out); all others step by step (`way_back.py`), with compiled attention.
Neither has gradients of gradients.
"""

from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows._fast import fast_path
from orbitlens.flows._fast.way_back import WayBack
from orbitlens.flows.fields import lengths
from orbitlens.flows.steps import Stop
from orbitlens.flows.system import System
from orbitlens.flows.way_back import StepsBack


def simulate_with_gradients(
    system: System, tokens: Tokens, *, until: float, rtol: float = 1e-8, max_steps: int = 10_000
) -> Tokens:
    """Return the tokens at time `until`, differentiable in `tokens` and in the system's tensors.

    Raises:
        InputError: noise, or tokens that run away before `until`.
    """
    if system.noise > 0:
        raise InputError("a noisy flow has no gradient along its path; set noise to 0.")
    x = tokens if system.positions is None or system.reinjected else tokens + system.positions
    x = x / lengths(x) if system.geometry.on_sphere else x
    known = {f.name: getattr(system, f.name) for f in fields(system)}
    tensors = {name: value for name, value in known.items() if isinstance(value, Tensor)}
    held: dict[str, Any] = {name: value.detach() for name, value in tensors.items()}
    fixed = replace(system, **held)

    whole = fast_path(fixed, len(x)).way_back
    way = whole(rtol) if whole else StepsBack(system=fixed, n_tokens=len(x), rtol=rtol)
    end: Tokens = _Followed.apply(way, until, max_steps, list(tensors), x, *tensors.values())
    return end


class _Followed(torch.autograd.Function):
    """The end of a flow, as a function of its start and its weights."""

    @staticmethod
    def forward(
        ctx: Any,  # noqa: ANN401 - torch's own
        way: WayBack | StepsBack,
        until: float,
        max_steps: int,
        names: list[str],
        start: Tokens,
        *weights: Tensor,
    ) -> Tokens:
        """Follow the flow, and keep its steps."""
        taken = way.follow(start.detach(), until, max_steps)
        if taken.stop is not Stop.DONE:
            raise InputError(
                f"tokens could not be followed to t = {until} in {max_steps} steps (they got to "
                f"{taken.t:.4g}); they may run away. Ask for a shorter time."
            )
        ctx.way, ctx.taken, ctx.names = way, taken, names
        return taken.end

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        """Go back step by step, from the gradient at the end to that at the start."""
        start, found = ctx.way.back(ctx.taken, outputs[0])
        return None, None, None, None, start, *(found.get(name) for name in ctx.names)
