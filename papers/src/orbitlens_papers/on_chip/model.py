"""The few-shot learner: an encoder, one attention layer whose state is the context, a readout.

Enters: pictures of a context with labels, pictures to be named. Leaves: logits over label neurons.
Slow weights (encoder, maps, readout) are frozen after training; all that changes at test time is
the state S = sum_t v_t k_t^T, or the slots of a softmax layer.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional

from orbitlens_papers.on_chip.episodes import N_LABELS, SIZE

WIDTH = 64
CHANNELS = (24, 48)
GAIN = 5.0  # of the readout at the start
SHARPNESS = 10.0  # of softmax at the start

Seen = Float[Tensor, "*any size size"]
Keys = Float[Tensor, "episodes tokens width"]
Asked = Float[Tensor, "episodes queries width"]
Values = Float[Tensor, "episodes tokens value_width"]
Logits = Float[Tensor, "episodes queries labels"]


class Encoder(nn.Module):
    """Two convolutions of stride two, a linear map, a norm."""

    def __init__(self) -> None:
        """Make the maps."""
        super().__init__()
        first, second = CHANNELS
        self.first = nn.Conv2d(1, first, 3, stride=2, padding=1)
        self.second = nn.Conv2d(first, second, 3, stride=2, padding=1)
        self.last = nn.Linear(second * (SIZE // 4) ** 2, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, pictures: Seen) -> Float[Tensor, "*any width"]:
        """Return a vector a picture."""
        flat = pictures.flatten(0, -3)[:, None]
        x = functional.relu(self.second(functional.relu(self.first(flat))))
        features: Tensor = self.norm(self.last(x.flatten(1)))
        return features.unflatten(0, pictures.shape[:-2])


class Learner(nn.Module):
    """Encoder, query and key maps, values of labels, readout."""

    def __init__(self, *, kind: str = "linear", start: str = "identity") -> None:
        """Make a learner.

        Args:
            kind: "linear" (a state) or "softmax" (slots).
            start: of the attention layer: "identity", or "random" as layers usually start.
        """
        super().__init__()
        self.kind = kind
        self.encoder = Encoder()
        self.w_q = nn.Parameter(_start(start, WIDTH))
        self.w_k = nn.Parameter(_start(start, WIDTH))
        self.values = nn.Parameter(_start(start, N_LABELS))
        self.readout = nn.Parameter(GAIN * _start(start, N_LABELS))
        self.log_sharpness = nn.Parameter(torch.tensor(SHARPNESS).log())

    def queries(self, features: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """Return queries of length 1."""
        return functional.normalize(features @ self.w_q, dim=-1)

    def keys(self, features: Float[Tensor, "*any width"]) -> Float[Tensor, "*any width"]:
        """Return keys of length 1."""
        return functional.normalize(features @ self.w_k, dim=-1)

    def forward(
        self, context: Keys, labels: Int[Tensor, "episodes tokens"], asked: Asked
    ) -> Logits:
        """Return logits from features of a context, its labels, and features to be named."""
        parts = self.parts(context, labels, asked)
        return attend(parts, sharpness=self.sharpness) @ self.readout

    @property
    def sharpness(self) -> Tensor | None:
        """What softmax scores are multiplied by; None for a linear layer."""
        return self.log_sharpness.exp() if self.kind == "softmax" else None

    def parts(self, context: Keys, labels: Int[Tensor, "episodes tokens"], asked: Asked) -> "Parts":
        """Return queries, keys and values of episodes."""
        return Parts(q=self.queries(asked), k=self.keys(context), v=self.values[labels])


@dataclass(frozen=True)
class Parts:
    """What an attention layer is given."""

    q: Asked
    k: Keys
    v: Values


def attend(
    parts: Parts, *, sharpness: Tensor | None = None
) -> Float[Tensor, "episodes queries value_width"]:
    """Return attention over a whole context at once: sum_t f(q . k_t) v_t."""
    scores = parts.q @ parts.k.mT
    weights = scores if sharpness is None else (sharpness * scores).softmax(dim=-1)
    return weights @ parts.v


def among(
    logits: Shaped[Tensor, "episodes queries labels"], used: Int[Tensor, "episodes way"]
) -> Shaped[Tensor, "episodes queries way"]:
    """Return the logits of the labels that an episode uses, in their order there."""
    return logits.gather(-1, used[:, None].expand(-1, logits.shape[1], -1))


def _start(kind: str, width: int) -> Float[Tensor, "width width"]:
    if kind == "identity":
        return torch.eye(width)
    return torch.randn(width, width) * width**-0.5
