"""A transformer block without positions, computed on counts of tokens: what training is tried on.

Enters: counts of tokens a sequence. Leaves: logits. Without positions, keys and values depend on
the token alone, so softmax attention over a sequence is a sum over the vocabulary with counts as
weights: the same numbers as over the tokens, at a cost that does not grow with the length.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class CountBlock(nn.Module):
    """One pre-norm block with one head, ReLU, and a readout; embeddings are random and fixed.

    As in the construction, the map of tokens is random and not counted; all else is trained.
    """

    embedding: Tensor

    def __init__(
        self, width: int, vocabulary: int, n_labels: int, *, generator: torch.Generator
    ) -> None:
        """Draw weights: N(0, 1 / inputs), biases zero."""
        super().__init__()
        self.register_buffer("embedding", torch.randn(vocabulary, width, generator=generator))
        self.query, self.key, self.value, self.output = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.readout = nn.Linear(width, n_labels)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                std = module.in_features**-0.5
                nn.init.normal_(module.weight, std=std, generator=generator)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(
        self, log_counts: Float[Tensor, "any vocabulary"], tokens: Int[Tensor, " any"]
    ) -> Float[Tensor, "any labels"]:
        """Return logits for each row: a token in a context with those counts.

        log(0) = -inf leaves out the tokens that are not there.
        """
        x = self.embedding
        scores = self.query(x) @ self.key(x).T / x.shape[1] ** 0.5
        weights = (scores[tokens] + log_counts).softmax(dim=-1)
        y = x[tokens] + self.output(weights @ self.value(x))
        y = y + self.down(self.up(self.before(y)).relu())
        logits: Tensor = self.readout(self.after(y))
        return logits

    @property
    def n_parameters(self) -> int:
        """Trained parameters."""
        return sum(p.numel() for p in self.parameters())
