"""What one step of depth does: size and direction of the update, contraction, Lyapunov exponent.

Enters: tokens before and after a step, or the step itself as a function. Leaves: numbers.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError

Step = Callable[[Tensor], Tensor]


def update_size(before: Tokens, after: Tokens) -> float:
    """Return |X' - X|_F / |X|_F."""
    size = before.norm()
    return ((after - before).norm() / size).item() if size > 0 else 0.0


def update_cosine(before: Tokens, after: Tokens) -> float:
    """Return the mean cosine between a token and its update: -1 shrinks it, 0 turns it."""
    return torch.nn.functional.cosine_similarity(before, after - before, dim=-1).mean().item()


def pair_contraction(
    before: Float[Tensor, "*batch tokens d_model"], after: Float[Tensor, "*batch tokens d_model"]
) -> float:
    """Return the mean of ln(|d'| / |d|) over the pairs (i, i + n/2): negative where pairs close up.

    Each token is in one pair, so the cost is linear. Pairs that coincide before or after are left
    out; 0 if all do.
    """
    shift = before.shape[-2] // 2
    if shift == 0:
        raise InputError("1 token was given; contraction needs at least 2.")
    first = torch.linalg.vector_norm(_gaps(before, shift), dim=-1)
    second = torch.linalg.vector_norm(_gaps(after, shift), dim=-1)
    both = (first > 0) & (second > 0)
    return torch.log(second[both] / first[both]).mean().item() if bool(both.any()) else 0.0


def _gaps(x: Tensor, shift: int) -> Tensor:
    return x[..., :shift, :] - x[..., shift : 2 * shift, :]


def lyapunov_exponents(
    steps: Sequence[Step], start: Tokens, *, generator: torch.Generator
) -> list[float]:
    """Return the growth ln|J v| / |v| of a tangent vector at every step; its mean is the exponent.

    The tangent starts at random and is carried along by Jacobian-vector products, renormalised at
    every step (Benettin et al. 1980): it turns into the direction that grows fastest, so that the
    mean over many steps tends to the top Lyapunov exponent.
    """
    x, v = start, random_tangent(start, generator)
    growth: list[float] = []
    for step in steps:
        x, v, size = carried_tangent(step, x, v)
        growth.append(size)
    return growth


def random_tangent(x: Tokens, generator: torch.Generator) -> Tokens:
    """Return a random unit tangent vector at x."""
    v = torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return v / v.norm()


def carried_tangent(step: Step, x: Tokens, v: Tokens) -> tuple[Tokens, Tokens, float]:
    """Return step(x), the unit tangent that v becomes, and ln of its growth."""
    after, moved = torch.func.jvp(step, (x,), (v,))  # type: ignore[misc]
    size = moved.norm()
    if size == 0:  # the step forgets this direction
        return after, v, -float("inf")
    return after, moved / size, torch.log(size).item()
