"""Images as tokens.

Enters: images. Leaves: their patches as tokens, row by row, behind a class token. What a stem and a
modulation do to patches happens here, before positions and before any attention.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from orbitlens.errors import InputError
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.moto import TokenProp, make_modulation, patches_of


class PatchEmbedding(nn.Module):
    """Images -> patches as tokens, row by row, behind a class token."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make the map of patches, what the switches ask for around it, and the class token."""
        super().__init__()
        size, channels, width = config.patch_size, config.num_channels, config.hidden_size
        self.stem = ConvStem(channels, width) if config.stem == "conv" else None
        inner = channels if self.stem is None else self.stem.width
        self.projection = nn.Conv2d(inner, width, size, stride=size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        self.shape = (channels, *config.image_sides)
        self.modulation = make_modulation(config)
        n_pixels, weight = channels * size**2, float(config.token_prop)
        self.token_prop = TokenProp(width, n_pixels, weight=weight) if weight else None
        self.added: Tensor | None = None

    def forward(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the class token, then the patches."""
        if tuple(images.shape[1:]) != self.shape:
            raise InputError(
                f"images of {list(images.shape[1:])} (channels, height, width); this model takes "
                f"{list(self.shape)}. Resize them, or set image_size and num_channels."
            )
        patches = self.tokens(images)
        if self.token_prop is not None and self.training:
            size = self.projection.kernel_size[0]
            self.added = self.token_prop(patches, patches_of(images, size))
        return torch.cat([self.class_token.expand(len(images), -1, -1), patches], dim=1)

    def tokens(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the patches as tokens, modulated, without class token and positions."""
        tokens = self.plain_tokens(images)
        if self.modulation is not None:
            tokens = self.modulation(tokens)
        return tokens

    def plain_tokens(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the patches as tokens, as they enter the modulation."""
        seen = images if self.stem is None else self.stem(images)
        tokens: Tensor = self.projection(seen).flatten(2).transpose(1, 2)
        return tokens

    def extra_loss(self) -> Float[Tensor, ""] | None:
        """Return what TokenProp adds to the loss of the last training batch, once; or None."""
        added, self.added = self.added, None
        return added


class ConvStem(nn.Module):
    """A 3 x 3 convolution in front of the patches: each token sees a pixel beyond its edge.

    After the stems of arXiv 2106.14881, with one layer, so that any size of patches will do.
    """

    def __init__(self, channels: int, width: int) -> None:
        """Make the convolution, half as wide as the model."""
        super().__init__()
        self.width = max(1, width // 2)
        self.convolution = nn.Conv2d(channels, self.width, 3, padding=1)

    def forward(
        self, images: Float[Tensor, "batch channel height width"]
    ) -> Float[Tensor, "batch inner height width"]:
        """Return what the patches are cut from."""
        channels: Tensor = self.convolution(images)
        return channels.relu()
