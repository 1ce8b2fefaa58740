"""Which layers matter least, told without taking any of them out: from weights, or in one pass.

Enters: a model, and tasks where tokens are needed. Leaves: a `LayerRanking`: a score a layer, the
lowest to be cut first. Nothing here knows the loss; `measuring.py` does.

- magnitude: the sum of squares of all weights of a layer. The usual baseline from weights.
- size by weights: what a layer adds to tokens, beside what it is added to, by sizes of maps alone.
  Behind a norm tokens have d coordinates of variance 1, so that a head adds |V_h|²_F and an MLP
  |W_out|²_F times the variance of its inside (that of ReLU); both add up along the stream, which
  starts with the size of an embedding. A post-norm layer is given the size d again.
- block influence: 1 − cosine of a token before and after the layer (arXiv 2403.03853).
- update size: |x' − x| / |x|.
- directions: |ΔS|, how much the layer gathers or spreads directions (theory section 7).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.cutting.measuring import Exam
from orbitlens.cutting.parts import Trunk
from orbitlens.families.architecture import Stack
from orbitlens.families.registry import FAMILIES
from orbitlens.heads.layers import load_layer
from orbitlens.running.capture import block_name, is_post_norm
from orbitlens.tracing.directions import CosineSums, as_norm_sees

EMBEDDINGS = ("embed_tokens", "wte", "word_embeddings", "embed_in", "embeddings", "embed")


@dataclass(frozen=True, kw_only=True)
class LayerRanking:
    """A score for every layer; the lowest is cut first."""

    method: str
    scores: tuple[float, ...]
    passes: float  # over the text; 0: weights alone

    def lowest(self, n_cut: int) -> frozenset[int]:
        """Return the layers that it would take out; of equal ones the later."""
        order = sorted(range(len(self.scores)), key=lambda k: (self.scores[k], -k))
        return frozenset(order[:n_cut])


# --- from the weights ------------------------------------------------------------------------


def weight_rankings(checkpoint: Checkpoint) -> list[LayerRanking]:
    """Return what sizes of weights say; nothing of the model is run."""
    stack = checkpoint.stack()
    blocks = [_block_tensors(checkpoint, tensors) for tensors in stack.tensors]
    sizes = {name: _square(checkpoint, name) for name in dict.fromkeys(chain.from_iterable(blocks))}
    magnitude = [sum(sizes[name] for name in names) for names in blocks]
    found = [LayerRanking(method="magnitude", scores=tuple(magnitude), passes=0.0)]
    if stack.refusal is None:
        added = [
            _attention_size(checkpoint, layer) + _mlp_size(checkpoint, stack, names, sizes)
            for layer, names in enumerate(blocks)
        ]
        scores = tuple(_beside_stream(checkpoint, stack, added))
        found.append(LayerRanking(method="size by weights", scores=scores, passes=0.0))
    return found


def _block_tensors(checkpoint: Checkpoint, tensors: Mapping[str, str]) -> list[str]:
    hooks = FAMILIES[checkpoint.architecture.family].hooks
    block = block_name(tensors["o"], hooks) + "."
    return [name for name in checkpoint.source.tensors if name.startswith(block)]


def _square(checkpoint: Checkpoint, name: str) -> float:
    return float(checkpoint.read(name).float().square().sum(dtype=torch.float64))


def _attention_size(checkpoint: Checkpoint, layer: int) -> float:
    """Return what heads add to a token of unit coordinates: the sum of |V_h|²_F."""
    loaded = load_layer(checkpoint, layer)
    grams = ((head.w_v.T @ head.w_v, head.w_o @ head.w_o.T) for head in loaded)
    return float(sum((inside * outside).sum() for inside, outside in grams))


def _mlp_size(
    checkpoint: Checkpoint, stack: Stack, names: Sequence[str], sizes: Mapping[str, float]
) -> float:
    """Return what an MLP adds to a token of unit coordinates, its activation taken for ReLU."""
    own = {name for tensors in stack.tensors for name in tensors.values()}
    into, out = [], []
    for name in names:
        shape = checkpoint.source.tensors[name].shape
        if len(shape) != 2 or name in own:
            continue
        n_in, n_out = shape if stack.transposed else shape[::-1]
        if n_in == stack.d_model and n_out != stack.d_model:
            into.append(sizes[name] / n_out)
        elif n_out == stack.d_model and n_in != stack.d_model:
            out.append(sizes[name])
    inside = 0.5
    for variance in into:  # one map, or two of which one is the gate
        inside *= variance
    return sum(out) * inside if into else 0.0


def _beside_stream(checkpoint: Checkpoint, stack: Stack, added: Sequence[float]) -> list[float]:
    if is_post_norm(stack):
        return [size / stack.d_model for size in added]
    stream, scores = _embedding_size(checkpoint, stack), []
    for size in added:
        scores.append(size / stream)
        stream += size
    return scores


def _embedding_size(checkpoint: Checkpoint, stack: Stack) -> float:
    """Return the mean square of an embedding; 1 a coordinate where no table is found."""
    for name, info in checkpoint.source.tensors.items():
        is_table = len(info.shape) == 2 and info.shape[1] == stack.d_model
        if is_table and any(part in EMBEDDINGS for part in name.split(".")):
            return _square(checkpoint, name) / info.shape[0]
    return float(stack.d_model)


# --- in one pass -----------------------------------------------------------------------------


def token_rankings(exam: Exam) -> list[LayerRanking]:
    """Return what one pass over a text says."""
    trunk = exam.trunk
    n_layers, sums = trunk.n_layers, _StepSums(trunk)
    with trunk.ready():
        for task in exam.tasks:
            sums.add(trunk.states(task.batch)[1])
    return [
        LayerRanking(method=name, scores=tuple(score(k) for k in range(n_layers)), passes=1.0)
        for name, score in sums.scores().items()
    ]


class _StepSums:
    """What layers do to tokens, summed over batches."""

    def __init__(self, trunk: Trunk) -> None:
        self.trunk, self.n_tokens = trunk, 0
        self.turned = [0.0] * trunk.n_layers
        self.moved = [0.0] * trunk.n_layers
        self.cosines = [CosineSums() for _ in range(trunk.n_layers + 1)]

    def add(self, states: Sequence[Tensor]) -> None:
        for sums, state in zip(self.cosines, states, strict=True):
            sums.add(as_norm_sees(state, self.trunk.stack.norm))
        self.n_tokens += states[0].shape[:2].numel()
        for layer, (before, after) in enumerate(pairwise(states)):
            cosine = torch.nn.functional.cosine_similarity(before, after, dim=-1)
            sizes = (after - before).norm(dim=-1) / before.norm(dim=-1).clamp(min=1e-30)
            self.turned[layer] += float((1 - cosine.double()).sum())
            self.moved[layer] += float(sizes.double().sum())

    def scores(self) -> dict[str, Callable[[int], float]]:
        spread = [sums.log_spread for sums in self.cosines]
        return {
            "block influence": lambda k: self.turned[k] / self.n_tokens,
            "update size": lambda k: self.moved[k] / self.n_tokens,
            "directions": lambda k: abs(spread[k + 1] - spread[k]),
        }
