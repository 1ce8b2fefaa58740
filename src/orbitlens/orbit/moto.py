"""Interaction between the tokens of an image before any attention: MoTo and TokenProp.

Enters: tokens, and for TokenProp the pixels they stand for. Leaves: tokens, or a loss. Both are
**reconstructions** from the abstract of arXiv 2212.11115, which gives no formulas.

    z = (x - mean) / deviation         over the tokens of one image, for each channel
    S = softmax(z w_layout)            n x K: which region a token belongs to, softly
    r_k = sum_i S_ik x_i / sum_i S_ik  mean token of region k
    gamma_k, beta_k = r_k w_modulation + b
    out = x + z (S gamma) + S beta     the residual form; z (1 + S gamma) + S beta replaces x by z

`w_modulation` and `b` start at zero: the residual form starts as no change at all, the other as
plain normalisation over tokens. All of it commutes with permutations of tokens, except where the
layout is drawn once for each place ("moto-random"): a control that is independent of the image.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from orbitlens.orbit.config import OrbitConfig

REGIONS = 4
EPSILON = 1e-5

Tokens = Float[Tensor, "batch tokens d_model"]
Layout = Float[Tensor, "batch tokens region"]


def over_tokens(x: Tokens) -> Tokens:
    """Return tokens with mean 0 and deviation 1 over each image, for each channel."""
    variance, mean = torch.var_mean(x, dim=1, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(variance + EPSILON)


class TokenNorm(nn.Module):
    """Normalisation over the tokens of one image, without anything learned."""

    def forward(self, x: Tokens) -> Tokens:
        """Return `over_tokens`."""
        return over_tokens(x)


class MoTo(nn.Module):
    """Modulation across tokens, reconstructed: each token is scaled and shifted by its regions."""

    fixed_layout: Tensor  # of a layout that is independent of the image

    def __init__(
        self, width: int, *, regions: int = REGIONS, replaces: bool = False, n_fixed: int = 0
    ) -> None:
        """Make the maps.

        Args:
            width: of tokens.
            regions: K.
            replaces: whether the normalised tokens take the place of the tokens.
            n_fixed: tokens of an image, for a random layout that does not depend on it; 0: none.
        """
        super().__init__()
        self.replaces = replaces
        fixed = _drawn(n_fixed, regions).softmax(dim=-1) if n_fixed else None
        self.register_buffer("fixed_layout", fixed)
        own = None if n_fixed else nn.Parameter(_drawn(width, regions) * width**-0.5)
        self.w_layout = own
        self.w_modulation = nn.Parameter(torch.zeros(width, 2 * width))
        self.b_modulation = nn.Parameter(torch.zeros(2 * width))

    def layout(self, x: Tokens) -> Layout:
        """Return S: the share of each region in each token; rows sum to one."""
        return self._shares(over_tokens(x))

    def _shares(self, z: Tokens) -> Layout:
        if self.w_layout is None:
            return self.fixed_layout.to(z.dtype).expand(len(z), -1, -1)
        return (z @ self.w_layout).softmax(dim=-1)

    def forward(self, x: Tokens) -> Tokens:
        """Return the modulated tokens."""
        z = over_tokens(x)
        shares = self._shares(z)
        regions = shares.mT @ x / shares.sum(dim=1)[..., None]
        modulation = shares @ (regions @ self.w_modulation + self.b_modulation)
        scale, shift = modulation.chunk(2, dim=-1)
        return (z if self.replaces else x) + z * scale + shift


def _drawn(rows: int, columns: int) -> Float[Tensor, "rows columns"]:
    """Return normal numbers that leave torch's own generator where it is.

    All other weights of a model are then those that its seed gives without them: runs are paired.
    """
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**63)
    return torch.randn(rows, columns, generator=generator, device="cpu")


def make_modulation(config: OrbitConfig) -> nn.Module | None:
    """Return what the config's `modulation` asks for."""
    if config.modulation == "none":
        return None
    if config.modulation == "token-norm":
        return TokenNorm()
    return MoTo(
        config.hidden_size,
        replaces=config.modulation == "moto-replace",
        n_fixed=config.n_patches if config.modulation == "moto-random" else 0,
    )


def patches_of(
    images: Float[Tensor, "batch channel height width"], size: int
) -> Float[Tensor, "batch tokens pixels"]:
    """Return the pixels of each patch, row by row."""
    rows, columns = (side // size for side in images.shape[2:])
    cut = images.unflatten(3, (columns, size)).unflatten(2, (rows, size))
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)


class TokenProp(nn.Module):
    """A linear map from tokens back to their pixels, whose mean squared error joins the loss."""

    def __init__(self, width: int, n_pixels: int, *, weight: float) -> None:
        """Make the map, which starts at zero; `weight` is the factor of the loss."""
        super().__init__()
        self.weight = weight
        self.w_pixels = nn.Parameter(torch.zeros(width, n_pixels))
        self.b_pixels = nn.Parameter(torch.zeros(n_pixels))

    def forward(
        self, tokens: Tokens, pixels: Float[Tensor, "batch tokens pixels"]
    ) -> Float[Tensor, ""]:
        """Return what is added to the loss."""
        reconstructed = tokens @ self.w_pixels + self.b_pixels
        return self.weight * functional.mse_loss(reconstructed, pixels)
