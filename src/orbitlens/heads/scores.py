"""The weights behind queries and keys alone, as they are stored: what a search for planes reads.

Enters: a `Checkpoint` and a layer's number. Leaves: `ScoreWeights`. Values and output maps are not
read where the file keeps them apart. Gains of norms on queries and keys are folded in; the norm in
front of attention is not, since training balances the stored weights (`theory/planes.py`). Of
latent attention the rotated part alone is read, which is by itself in the file.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import LayerSpec, Stack
from orbitlens.heads.reading import LayerReader

SCORE_ROLES = {"q", "k", "qkv", "q_norm", "k_norm", "q_down", "q_down_norm", "q_up", "kv_down"}


@dataclass(frozen=True, kw_only=True)
class ScoreWeights:
    """Queries and keys of one layer; keys are shared by equally many heads each."""

    spec: LayerSpec
    w_q: Float[Tensor, "head d_model d_head"]  # float32
    w_k: Float[Tensor, "kv_head d_model d_head"]


def load_scores(checkpoint: Checkpoint, index: int, *, stack: str | None = None) -> ScoreWeights:
    """Read the queries and keys of one layer.

    Raises:
        CheckpointError: a tensor is broken, or the layer's maps are no product of stored weights.
    """
    tower = checkpoint.stack(stack)
    why = unreadable(tower)
    if why is not None:
        raise CheckpointError(f"{checkpoint.path}: {why}. Its queries and keys cannot be read.")
    reader = LayerReader(checkpoint, tower, index, torch.device("cpu"))
    with checkpoint.expecting(score_tensors(tower, index)):
        queries, keys = (
            reader.scores() if tower.latent is None else reader.latent_scores(tower.latent)
        )
    return ScoreWeights(spec=tower.layers[index], w_q=queries, w_k=keys)


def score_tensors(stack: Stack, index: int) -> tuple[str, ...]:
    """Return the names of the tensors that `load_scores` reads."""
    named = stack.tensors[index].items()
    return tuple(name for role, name in named if role.partition(".")[0] in SCORE_ROLES)


def unreadable(stack: Stack) -> str | None:
    """Return why a stack has no weights of queries and keys to be read; None where it has."""
    if stack.recipe is not None:
        return stack.refusal or f"its maps are computed by the recipe {stack.recipe!r}"
    return stack.refusal
