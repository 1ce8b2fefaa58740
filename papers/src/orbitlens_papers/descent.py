"""Normalised gradient descent: steps of one length, however small the gradient has become.

Enters: parameters with gradients. Leaves: the parameters, moved. Losses of separable problems have
their minimum at infinity: plain descent gets there at the pace of a logarithm, this one linearly.
"""

from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError


@torch.no_grad()
def normalised_step(
    parameters: Iterable[Tensor], rate: float, *, separate: bool = False
) -> Float[Tensor, " problem"]:
    """Move all parameters by `rate` against the gradient, p - rate * g / |g|.

    |g| is one common norm over all the parameters. Nothing moves where it is zero.

    Args:
        parameters: tensors whose `grad` is there.
        rate: length of the step.
        separate: the first axis numbers independent problems, each with its own norm.

    Returns:
        the norms of the gradients, one a problem.

    Raises:
        InputError: a parameter has no gradient.
    """
    given = list(parameters)
    gradients = [p.grad for p in given if p.grad is not None]
    if not given or len(gradients) < len(given):
        raise InputError(
            f"{len(gradients)} of {len(given)} parameters have a gradient; a step needs that of "
            "all, and at least one. Call backward() first, and leave out what is not used."
        )
    rows = [g.flatten(1) if separate else g.flatten()[None] for g in gradients]
    joined = torch.cat(rows, dim=1)
    # Gradients here reach 1e-300: their squares would be zero.
    largest = joined.abs().amax(dim=1)
    still = largest < torch.finfo(largest.dtype).tiny
    scale = torch.where(still, torch.ones_like(largest), largest)
    norms = scale * (joined / scale[:, None]).norm(dim=1)
    norms = torch.where(still, torch.zeros_like(norms), norms)
    factor = torch.where(still, torch.zeros_like(norms), rate / norms.where(~still, scale))
    for parameter, gradient in zip(given, gradients, strict=True):
        shape = (-1, *[1] * (gradient.ndim - 1)) if separate else ()
        parameter -= factor.view(shape) * gradient
    return norms
