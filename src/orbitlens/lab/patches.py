"""Images as tokens.

Enters: images. Leaves: their patches as tokens, row by row, behind a class token.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitlens.errors import InputError
from orbitlens.lab.config import OrbitConfig


class PatchEmbedding(nn.Module):
    """Images -> patches as tokens, row by row, behind a class token."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make the map of patches and the class token."""
        super().__init__()
        size = config.patch_size
        self.projection = nn.Conv2d(config.num_channels, config.hidden_size, size, stride=size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, config.hidden_size))
        self.shape = (config.num_channels, *config.image_sides)

    def forward(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the class token, then the patches."""
        if tuple(images.shape[1:]) != self.shape:
            raise InputError(
                f"images of {list(images.shape[1:])} (channels, height, width); this model takes "
                f"{list(self.shape)}. Resize them, or set image_size and num_channels."
            )
        patches = self.projection(images).flatten(2).transpose(1, 2)
        return torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)
