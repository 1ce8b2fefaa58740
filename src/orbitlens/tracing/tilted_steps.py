"""Steps of heads on Gaussian tokens in closed form: T6 and T7 for directions.

Enters: the tally of a layer on the text to fit on. Leaves: some of its tokens, and what each head
is said to add to them. Tokens look at their like: the mean of what a query takes up is tilted by
Cov(v, k) q, so that B = V S W^T acts on the direction tokens share and on each token's own (theory
sections 3 and 7). Attention is predicted; of the text only means and a covariance are known.
"""

import torch

from orbitlens.theory.maps import matrix_root
from orbitlens.tracing.attention_shares import Steps, kept_contexts
from orbitlens.tracing.gaussian_scores import GaussianScores, TokenStatistics
from orbitlens.tracing.heads import seen_tokens
from orbitlens.tracing.position_points import Contexts, PositionPoints, relative_size
from orbitlens.tracing.tally import LayerTally

N_QUERIES = 96  # tokens a context whose updates are worked out
N_QUERIED = 4  # contexts they are taken from


def tilted_steps(
    tally: LayerTally, generator: torch.Generator, *, freezes: bool, points: bool
) -> tuple[Contexts, Steps]:
    """Return tokens, and what heads add to them that see Gaussian tokens.

    Args:
        tally: sums and contexts of the text to fit on.
        generator: for fluctuations.
        freezes: softmax freezes on the best of n draws, and fluctuates (T7); else T6.
        points: positions have a mean and a size each, and a token knows itself.
    """
    layer = tally.layer
    contexts = kept_contexts(tally)
    seen = seen_tokens(layer, contexts)
    known = point_statistics(seen) if points else cloud_statistics(tally)
    n = contexts.shape[1]
    chosen = torch.linspace(0, n - 1, min(N_QUERIES, n)).long()
    queries = seen[:N_QUERIED, chosen]
    steps = []
    for h in range(layer.n_heads):
        scores = GaussianScores.of(layer, h, known, chosen, n, with_itself=points)
        answers = [scores.answer(context, freezes=freezes) for context in queries]
        step = torch.stack([answer.update for answer in answers])
        if freezes:
            root = matrix_root(scores.value_covariance)
            draws = torch.randn(*step.shape[:2], len(root), generator=generator).to(step)
            loose = torch.stack([answer.loose for answer in answers])
            step = step + loose.sqrt()[..., None] * (draws @ root.T @ scores.w_o)
        steps.append(step)
    return contexts[:N_QUERIED, chosen], torch.stack(steps)


def cloud_statistics(tally: LayerTally) -> TokenStatistics:
    """Return mean and covariance of what heads see, the same at every position."""
    seen = tally.what_heads_see
    return TokenStatistics(
        mean=seen.mean[None],
        covariance=seen.covariance.value,
        size=torch.ones(1, dtype=torch.float64),
    )


def point_statistics(seen: Contexts) -> TokenStatistics:
    """Return a mean and a size at each position, and the covariance of what is left."""
    placed = PositionPoints.of(seen)
    flat = placed.content.flatten(0, 1)
    return TokenStatistics(
        mean=placed.mean,
        covariance=flat.T @ flat / len(flat),
        size=relative_size(placed.content),
    )
