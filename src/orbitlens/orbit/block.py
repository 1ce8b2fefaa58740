"""One layer: attention, MLP, and the norms and residual sums that the switches leave in place.

Enters: the residual stream. Leaves: the stream one layer on. Every slot for a norm exists in every
layer and holds nothing where the switch is off, so that hooks find the same places everywhere:

    a = attn_out_norm(self_attn(attn_norm(x)))      y = attn_post_norm(x + a)
    m = mlp_out_norm(mlp(mlp_norm(y)))              z = mlp_post_norm(y + m)
"""

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional
from transformers import Cache

from orbitlens.orbit.attention import Frame, Given, OrbitAttention
from orbitlens.orbit.config import OrbitConfig

BatchTokens = Float[Tensor, "batch tokens d_model"]
USED = {"pre": ("norm",), "peri": ("norm", "out_norm"), "post": ("post_norm",), "none": ()}


def residual_plan(config: OrbitConfig) -> tuple[tuple[bool, bool], ...]:
    """Return for every layer whether the sums behind attention and behind the MLP are kept."""
    n_layers = config.num_hidden_layers
    if isinstance(config.residual, list):
        return tuple(
            (layer in config.residual, layer in config.residual) for layer in range(n_layers)
        )
    kept = {"all": (True, True), "none": (False, False)}
    kept |= {"attention": (True, False), "mlp": (False, True)}
    return (kept[config.residual],) * n_layers


def make_norm(config: OrbitConfig, *, gain: bool = True) -> nn.Module:
    """Return the norm of the config's kind."""
    width, epsilon = config.hidden_size, config.layer_norm_eps
    if config.norm_kind == "rms":
        return nn.RMSNorm(width, eps=epsilon, elementwise_affine=gain)
    return nn.LayerNorm(width, eps=epsilon, elementwise_affine=gain, bias=config.bias)


class OrbitMlp(nn.Module):
    """Two maps with GELU between them, or three with a gate (SwiGLU)."""

    def __init__(self, config: OrbitConfig) -> None:
        """Make the maps."""
        super().__init__()
        width, inner = config.hidden_size, int(config.intermediate_size or 0)
        self.up_proj = nn.Linear(width, inner, bias=config.bias)
        self.gate_proj = (
            nn.Linear(width, inner, bias=config.bias) if config.activation == "swiglu" else None
        )
        self.down_proj = nn.Linear(inner, width, bias=config.bias)

    def forward(self, x: BatchTokens) -> BatchTokens:
        """Return what the MLP adds to each token."""
        if self.gate_proj is None:
            inner = functional.gelu(self.up_proj(x), approximate="tanh")
        else:
            inner = functional.silu(self.gate_proj(x)) * self.up_proj(x)
        out: Tensor = self.down_proj(inner)
        return out


class OrbitBlock(nn.Module):
    """One layer of the model."""

    attn_norm: nn.Module
    attn_out_norm: nn.Module
    attn_post_norm: nn.Module
    mlp_norm: nn.Module
    mlp_out_norm: nn.Module
    mlp_post_norm: nn.Module

    def __init__(self, config: OrbitConfig, attention: OrbitAttention) -> None:
        """Fill the slots that the switches ask for."""
        super().__init__()
        self.keeps = residual_plan(config)
        self.self_attn = attention
        self.mlp = OrbitMlp(config) if config.mlp else None
        for branch in ("attn", "mlp"):
            present = branch == "attn" or config.mlp
            for slot in ("norm", "out_norm", "post_norm"):
                used = present and slot in USED[config.norm]
                # A gain in front of definite maps would undo their signs.
                gain = not (config.holds_signs and (branch, slot) == ("attn", "norm"))
                norm = make_norm(config, gain=gain) if used else nn.Identity()
                self.add_module(f"{branch}_{slot}", norm)

    @property
    def keeps_all(self) -> bool:
        """Whether every residual sum is in place."""
        return all(all(kept) for kept in self.keeps)

    def frame(self) -> Frame:
        """Return the norms around attention."""
        return Frame(
            gain=getattr(self.attn_norm, "weight", None),
            centred=isinstance(self.attn_norm, nn.LayerNorm),
            out_gain=getattr(self.attn_out_norm, "weight", None),
        )

    def forward(
        self,
        x: BatchTokens,
        given: Given,
        cache: Cache | None = None,
        layer: int = 0,
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return the stream one layer on, and attention's pattern or None."""
        keeps_attention, keeps_mlp = self.keeps[layer]
        added, pattern = self.self_attn(self.attn_norm(x), given, cache, layer)
        added = self.attn_out_norm(added)
        x = self.attn_post_norm(x + added if keeps_attention else added)
        if self.mlp is not None:
            added = self.mlp_out_norm(self.mlp(self.mlp_norm(x)))
            x = x + added if keeps_mlp else added
        return self.mlp_post_norm(x), pattern
