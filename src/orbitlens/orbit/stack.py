"""OrbitModel: the stack of layers without a head, built from the switches of its config.

Enters: token ids or images. Leaves: hidden states, and a cache where one is asked for. The heads on
top of it are in `language.py` and `images.py`.
"""

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel, initialization
from transformers.modeling_outputs import BaseModelOutputWithPast

from orbitlens.errors import InputError
from orbitlens.orbit.arms import FreeMatrices, ReleasedMaps
from orbitlens.orbit.averages import HeadScalars
from orbitlens.orbit.block import OrbitBlock, make_norm
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.kinds import make_attention
from orbitlens.orbit.masks import Call, Surroundings
from orbitlens.orbit.patches import PatchEmbedding
from orbitlens.orbit.position import SinusoidalPositions
from orbitlens.orbit.separable import LineSurroundings, SeparableBlock


class OrbitPreTrainedModel(PreTrainedModel):
    """What the Orbit models share: how weights start, and what a trainer asks of them."""

    config_class = OrbitConfig
    base_model_prefix = "model"
    main_input_name = "input_ids"
    _supports_sdpa = True
    _no_split_modules = ["OrbitBlock"]  # noqa: RUF012 - as transformers has it

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw weights from a normal distribution; maps that write to the stream, narrower."""
        std = self.config.initializer_range
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=std)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, SinusoidalPositions):
            initialization.copy_(module.weight, module.table())
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=std)
        elif isinstance(module, nn.LayerNorm | nn.RMSNorm):
            if module.weight is not None:
                nn.init.ones_(module.weight)
            if isinstance(module, nn.LayerNorm) and module.bias is not None:
                nn.init.zeros_(module.bias)
        else:
            self._init_own(module)

    def _init_own(self, module: nn.Module) -> None:
        if isinstance(module, FreeMatrices):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            start = torch.full_like(module.per_head().diagonal(dim1=1, dim2=2), module.start)
            started = torch.diagonal_scatter(module.per_head(), start, dim1=1, dim2=2)
            initialization.copy_(module.weight, started.flatten(0, 1))
        elif isinstance(module, ReleasedMaps):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
            initialization.copy_(module.weight, module.started)
        elif isinstance(module, HeadScalars):
            nn.init.constant_(module.weight, module.start)

    def extra_loss(self) -> Tensor:
        """Return what a refinement and TokenProp add to the loss: 0 for most."""
        total = torch.zeros((), device=self.device)
        for block in self._blocks():
            added = block.self_attn.extra_loss(block.frame())
            total = total if added is None else total + added
        for module in self.modules():
            added = module.extra_loss() if isinstance(module, PatchEmbedding) else None
            total = total if added is None else total + added
        return total

    @torch.no_grad()
    def after_step(self) -> None:
        """Put weights back where a refinement holds them; called after every optimizer step."""
        for block in self._blocks():
            block.self_attn.after_step(block.frame())

    def _blocks(self) -> list[OrbitBlock]:
        return [module for module in self.modules() if isinstance(module, OrbitBlock)]


class OrbitModel(OrbitPreTrainedModel):
    """The stack of layers without a head."""

    def __init__(self, config: OrbitConfig) -> None:
        """Build what the switches ask for."""
        super().__init__(config)
        width = config.hidden_size
        is_image = config.image_size is not None
        self.embed_tokens = None if is_image else nn.Embedding(config.vocab_size, width)
        self.embed_patches = PatchEmbedding(config) if is_image else None
        n_positions = config.n_patches + 1 if is_image else config.max_position_embeddings
        tables = {"learned": nn.Embedding, "sinusoidal": SinusoidalPositions}
        is_separable = config.attention == "separable"  # its layers have tables of their own
        table = None if is_separable else tables.get(config.position)
        self.embed_positions = None if table is None else table(n_positions, width)
        n_buckets = config.relative_attention_num_buckets
        heads = config.num_attention_heads
        self.relative_bias = nn.Embedding(n_buckets, heads) if config.position == "t5" else None
        n_sets = 1 if config.shared_layers else config.num_hidden_layers
        self.layers = nn.ModuleList(
            SeparableBlock(config, make_attention(config), number)
            if is_separable
            else OrbitBlock(config, make_attention(config))
            for number in range(n_sets)
        )
        has_norm = config.norm in {"pre", "peri"}
        self.norm = make_norm(config) if has_norm else nn.Identity()
        self.reinjects = config.refinement == "reinjection"
        around = LineSurroundings if is_separable else Surroundings
        self.surroundings = around(config, self.relative_bias)
        self.post_init()

    def get_input_embeddings(self) -> Any:  # noqa: ANN401 - None for a model of images
        """Return the table of tokens, where there is one."""
        return self.embed_tokens

    def set_input_embeddings(self, value: Any) -> None:  # noqa: ANN401
        """Replace the table of tokens."""
        self.embed_tokens = value

    def forward(  # noqa: PLR0913 - as transformers has it
        self,
        input_ids: Int[Tensor, "batch tokens"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "rows tokens"] | None = None,
        past_key_values: Any = None,  # noqa: ANN401 - a cache of transformers
        inputs_embeds: Float[Tensor, "batch tokens d_model"] | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        pixel_values: Float[Tensor, "batch channel height width"] | None = None,
        **unused: Any,  # noqa: ANN401 - what transformers passes to all models
    ) -> BaseModelOutputWithPast:
        """Run all layers.

        Args:
            input_ids: tokens; or `inputs_embeds`, or `pixel_values` for a model of images.
            attention_mask: (batch, tokens) of 0 and 1; or 4-D, boolean or additive, which takes
                the place of the config's own mask.
            position_ids: in place of 0, 1, 2, ...; of an image's patches, from 1 on.
            past_key_values: a cache of keys and values.
            inputs_embeds: tokens as vectors.
            use_cache: make a cache where none is given; by default only when not training.
            output_hidden_states: return the input of every layer and the last output.
            output_attentions: return patterns.
            pixel_values: images.
            unused: ignored.
        """
        x = self._embedded(input_ids, inputs_embeds, pixel_values)
        cache = past_key_values
        if cache is None and use_cache and self.config.mask == "causal":
            cache = DynamicCache()
        if self.embed_patches is not None and position_ids is not None:
            position_ids = functional.pad(position_ids, (1, 0))  # the class token stands at 0
        call = Call(
            n_tokens=x.shape[1],
            n_past=0 if cache is None else cache.get_seq_length(),
            position_ids=position_ids,
            attention_mask=attention_mask,
            patterns=bool(output_attentions),
        )
        states: list[Any] | None = [] if output_hidden_states else None
        x, patterns = self._through_layers(x, call, cache, states)
        x = self.norm(x)
        return BaseModelOutputWithPast(
            last_hidden_state=x,
            past_key_values=cache,
            hidden_states=None if states is None else (*states, x),
            attentions=tuple(patterns) if output_attentions else None,
        )

    def _through_layers(
        self,
        x: Tensor,
        call: Call,
        cache: Any,  # noqa: ANN401 - a cache of transformers
        states: list[Any] | None,
    ) -> tuple[Tensor, list[Any]]:
        """Return the stream after the last layer and each pattern; `states` takes its inputs."""
        turned = plain = self.surroundings.given(call, x)
        if self.config.rotary_layers != "all":
            plain = replace(turned, angles=None)
        places = self._places(call, x.device)
        if places is not None:
            x = x + places
        patterns: list[Any] = []
        for number in range(self.config.num_hidden_layers):
            if places is not None and self.reinjects and number:
                x = x + places
            if states is not None:
                states.append(x)
            block = self.layers[0 if self.config.shared_layers else number]
            given = turned if self.config.is_turned(number) else plain
            x, pattern = block(x, given, cache, number)
            patterns.append(pattern)
        return x, patterns

    def _embedded(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, pixels: Tensor | None
    ) -> Tensor:
        if inputs_embeds is not None:
            return inputs_embeds
        if self.embed_patches is not None:
            if pixels is None:
                raise InputError("this is a model of images: give pixel_values.")
            patches: Tensor = self.embed_patches(pixels)
            return patches
        if input_ids is None or self.embed_tokens is None:
            raise InputError("this is a model of tokens: give input_ids or inputs_embeds.")
        tokens: Tensor = self.embed_tokens(input_ids)
        return tokens

    def _places(self, call: Call, device: torch.device) -> Tensor | None:
        """Return the encodings that are added to tokens, or None."""
        table = self.embed_positions
        if table is None:
            return None
        last = call.n_past + call.n_tokens
        if call.position_ids is None and last > table.num_embeddings:
            raise InputError(
                f"an input of {last} tokens; this model has {table.num_embeddings} positions. "
                "Give shorter inputs, or a larger max_position_embeddings."
            )
        if call.is_plain:
            return table.weight[: call.n_tokens]
        places: Tensor = table(self.surroundings.query_ids(call, device))
        return places
