"""How much tokens surprise a model: what its output says of them, in nats.

Enters: the output of a forward call, token ids. Leaves: cross-entropies of single tokens, which
callers average over contexts or positions. Logarithms are taken in double precision.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional

from orbitlens.errors import InputError

Rows = Int[Tensor, "_ _"]  # token ids; the last column may be predicted only, and not run


def logits_of(output: Any) -> Tensor:  # noqa: ANN401 - whatever a model's class returns
    """Return the logits in what a model returned.

    Raises:
        InputError: there are none.
    """
    for name in ("logits", "prediction_logits"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor):
            return found
    raise InputError(
        f"the model returned {type(output).__name__}, with no logits, so no loss can be measured. "
        "Give a model with a language head."
    )


def token_surprise(
    logits: Float[Tensor, "batch tokens vocabulary"], ids: Int[Tensor, "batch tokens"]
) -> Float[Tensor, "batch tokens"]:
    """Return the cross-entropy of every id under the logits at its own place."""
    ids = ids.to(logits.device)
    return functional.cross_entropy(logits.double().transpose(1, 2), ids, reduction="none")


def next_token_losses(
    logits: Float[Tensor, "batch _ vocabulary"], rows: Rows
) -> Float[Tensor, "batch _"]:
    """Return the loss of every token behind the first; rows may hold one more than was run."""
    return token_surprise(logits[:, : rows.shape[1] - 1], rows[:, 1:])
