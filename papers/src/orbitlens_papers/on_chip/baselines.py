"""What a learner is compared with: pixels, prototypes, a gradient step, outlines.

Enters: the same episodes, or the runs of the official test. Leaves: logits or answers.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens_papers.on_chip.drawings import OneShotRun
from orbitlens_papers.on_chip.episodes import N_LABELS
from orbitlens_papers.on_chip.model import Asked, Keys, Logits

STEP = 1.0  # rate of the gradient step

Labels = Int[Tensor, "episodes tokens"]


def nearest(context: Keys, labels: Labels, asked: Asked) -> Logits:
    """Return 1 at the label of the nearest row of the context, 0 elsewhere."""
    places = torch.cdist(asked, context).argmin(dim=-1)
    return functional.one_hot(labels.gather(1, places), N_LABELS).to(context.dtype)


def prototypes(context: Keys, labels: Labels, asked: Asked) -> Logits:
    """Return minus the squared distance to the mean of each label's rows; -inf without rows."""
    given = functional.one_hot(labels, N_LABELS).to(context.dtype)
    counts = given.sum(dim=1)
    means = given.mT @ context / counts.clamp(min=1)[..., None]
    far = torch.cdist(asked, means).square()
    return (-far).masked_fill(counts[:, None] == 0, -torch.inf)


def one_step(context: Keys, labels: Labels, asked: Asked, *, loss: str = "cross-entropy") -> Logits:
    """Return logits of a linear readout after one step of gradient descent from zero.

    The gradient is computed by backpropagation, not by the formula it has here. With half the
    squared error the readout becomes sum_t y_t k_t^T: the state of linear attention.
    """
    weights = torch.zeros(len(context), N_LABELS, context.shape[-1], dtype=context.dtype)
    weights.requires_grad_()
    targets = functional.one_hot(labels, N_LABELS).to(context.dtype)
    logits = context.detach() @ weights.mT
    if loss == "squared":
        total = 0.5 * (logits - targets).square().sum()
    else:
        # Among the labels that the episode uses: the others are not asked for.
        unused = targets.sum(dim=1, keepdim=True) == 0
        shown = logits.masked_fill(unused, -torch.inf)
        total = -shown.log_softmax(dim=-1).gather(-1, labels[..., None]).sum()
    (gradient,) = torch.autograd.grad(total, weights)
    return asked @ (-STEP * gradient).mT


# --- outlines --------------------------------------------------------------------------------


def ink_points(picture: Float[Tensor, "height width"]) -> Float[Tensor, "points two"]:
    """Return the places of black pixels, about their mean."""
    points = picture.nonzero().double()
    return points - points.mean(dim=0)


def hausdorff(first: Float[Tensor, "points two"], second: Float[Tensor, "others two"]) -> float:
    """Return the modified Hausdorff distance (Dubuisson and Jain, 1994).

    The mean distance from a point of one to the nearest of the other, the larger way round.
    """
    from scipy.spatial import KDTree

    one, other = first.numpy(), second.numpy()
    there, _ = KDTree(other).query(one)
    back, _ = KDTree(one).query(other)
    return max(float(there.mean()), float(back.mean()))


def by_outline(run: OneShotRun) -> Int[Tensor, " items"]:
    """Return the class of each test picture whose outline is nearest."""
    taught = [ink_points(picture) for picture in run.taught]
    asked = [ink_points(picture) for picture in run.asked]
    apart = torch.tensor([[hausdorff(a, b) for b in taught] for a in asked])
    return apart.argmin(dim=-1)
