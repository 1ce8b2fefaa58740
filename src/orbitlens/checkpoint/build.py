"""Config + tensor names -> Architecture: a family's layout applied to one checkpoint.

Enters: a parsed config and a `TensorSource`. Leaves: an `Architecture` whose every tensor name has
been found in the file and whose every shape has been checked against the config.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from orbitlens.checkpoint.bounds import check_counts, check_sharing, check_width
from orbitlens.checkpoint.source import TensorSource
from orbitlens.errors import CheckpointError, UnknownFamilyError
from orbitlens.families.architecture import Architecture, LatentSpec, LayerSpec, Position, Stack
from orbitlens.families.family import Family
from orbitlens.families.gguf import layout_in_gguf
from orbitlens.families.layout import (
    Layout,
    PerConfig,
    resolve,
    resolve_layer,
    rotary_of,
)
from orbitlens.families.registry import family_of
from orbitlens.families.settings import Settings

T = TypeVar("T")
ATTENTION_WORDS = ("attn", "attention", "query", "key", "value", "q_proj", "qkv", "c_attn")


def build_architecture(config: Mapping[str, Any], source: TensorSource, path: str) -> Architecture:
    """Find the family of one checkpoint, and apply its layout.

    Raises:
        UnknownFamilyError: no family has the config's `model_type`.
        CheckpointError: the config or the tensors do not have the form the family expects.
    """
    try:
        family = family_of(config)
    except UnknownFamilyError as error:
        raise UnknownFamilyError(_unknown(error, config, source, path)) from None
    inner = config.get("text_config")  # a multimodal model keeps its language model's config here
    merged = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
    merged["_gguf"] = config.get("_gguf")  # our own key, which no inner config may set
    settings = Settings(merged, path)
    try:
        return _build(family, settings, source)
    # Settings check the types of all they return: a TypeError here would be a bug of ours.
    except (ValueError, LookupError, ArithmeticError) as error:
        raise CheckpointError(
            f"{path}: the config of this {family.model_type!r} model has a value of an unexpected "
            f"form ({type(error).__name__}: {error}). Correct the config, or fetch it again."
        ) from error


def _build(family: Family, settings: Settings, source: TensorSource) -> Architecture:
    overrides = settings.get("_gguf")
    layouts = family.stacks
    if overrides is not None:
        layouts = tuple(layout_in_gguf(layout, overrides) for layout in family.stacks)
    stacks, flags = [], list(settings.get("_gguf.flags", ()))
    for layout in layouts:
        prefix = _prefix(layout, settings, source)
        if prefix is None:
            flags.append(f"no {layout.stack} in these files")
            continue
        stacks.append(_Builder(layout, settings, source, prefix).stack())
        flags += resolve(layout.flags, settings)
    if not stacks:
        name = _output_name(layouts[0], settings, _layer_numbers(layouts[0], settings)[0])
        raise CheckpointError(
            f"{settings.path}: a {family.model_type!r} model keeps attention in tensors like "
            f"{name!r}, and there is none. {_attention_like(source)}"
        )
    if len(layouts) > 1:
        flags.append("cross-attention is not scanned: it moves a token by another stack's tokens")
    return Architecture(family=family.model_type, stacks=tuple(stacks), flags=tuple(flags))


def _layer_name(layout: Layout, settings: Settings, layer: int) -> str:
    return resolve_layer(layout.layer, settings, layer).replace("{layer}", str(layer))


def _prefix(layout: Layout, settings: Settings, source: TensorSource) -> str | None:
    first = _layer_numbers(layout, settings)[0]
    probe = f"{_output_name(layout, settings, first)}.weight"
    return next((p for p in layout.prefixes if p + probe in source.tensors), None)


def _output_name(layout: Layout, settings: Settings, layer: int) -> str:
    return f"{_layer_name(layout, settings, layer)}.{resolve(layout.o, settings)}"


def _layer_numbers(layout: Layout, settings: Settings) -> Sequence[int]:
    """Return the numbers of the layers with attention, in the model's count."""
    n_layers = resolve(layout.n_layers, settings)
    check_counts(settings.path, n_layers=n_layers, n_heads=resolve(layout.n_heads, settings))
    numbers = resolve(layout.attention_layers, settings)
    if numbers is not None and not numbers:
        raise CheckpointError(
            f"{settings.path}: by its config none of this model's {n_layers} layers has attention, "
            "so there are no heads to read."
        )
    return range(n_layers) if numbers is None else numbers


class _Builder:
    """Fills one `Stack` from one layout; the state is what every step needs."""

    def __init__(
        self, layout: Layout, settings: Settings, source: TensorSource, prefix: str
    ) -> None:
        self.layout, self.settings, self.source, self.prefix = layout, settings, source, prefix
        self.n_heads = self.get(layout.n_heads)
        self.n_kv_heads = self.get(layout.n_kv_heads)
        self.d_model = settings.size("d_model")
        self.recipe = self.get(layout.recipe)
        self.latent = self.get(layout.latent)
        self.d_head = self._head_width()
        check_width(settings.path, d_model=self.d_model, heads_width=self.n_heads * self.d_head)
        if self.n_heads % self.n_kv_heads:
            raise CheckpointError(
                f"{settings.path}: {self.n_heads} heads do not share {self.n_kv_heads} key/value "
                "heads evenly. Correct num_attention_heads or num_key_value_heads in the config."
            )

    def get(self, entry: PerConfig[T]) -> T:
        return resolve(entry, self.settings)

    def _head_width(self) -> int:
        given = self.get(self.layout.d_head) if self.latent is None else self.latent.d_head
        if given is None and self.d_model % self.n_heads:
            raise CheckpointError(
                f"{self.settings.path}: d_model={self.d_model} does not split into "
                f"n_heads={self.n_heads}. Set `head_dim` in the config if heads are not "
                "d_model // n_heads wide."
            )
        return given if given is not None else self.d_model // self.n_heads

    def stack(self) -> Stack:
        layout, settings = self.layout, self.settings
        position = self.get(layout.position)
        layers = _layer_numbers(layout, settings)
        qk_norm = self.get(layout.qk_norm)
        norm, output_norm = self.get(layout.norm), self.get(layout.output_norm)
        epsilon = self._epsilon()
        # First, as it stops at the first missing layer: an absurd layer count costs nothing.
        tensors = tuple(self._tensors(layer) for layer in layers)
        n_sets = len({names["o"] for names in tensors})
        check_sharing(settings.path, n_layers=len(tensors), n_sets=n_sets)
        return Stack(
            name=layout.stack,
            causal=self.get(layout.causal),
            position=position,
            d_model=self.d_model,
            d_head=self.d_head,
            norm=self.get(layout.norm_kind) if norm is not None else None,
            norm_epsilon=epsilon,
            norm_gain_offset=layout.norm_gain_offset,
            output_norm=output_norm is not None,
            qk_norm=layout.qk_norm_kind if qk_norm is not None else None,
            qk_norm_scope=layout.qk_norm_scope,
            qk_norm_epsilon=epsilon,
            qk_clip=self.get(layout.clip),
            softcap=self.get(layout.softcap),
            parallel=self.get(layout.parallel),
            alibi_scale=self.get(layout.alibi_scale),
            alibi_max=settings.optional_positive("attn_config.alibi_bias_max") or 8.0,
            t5_max_distance=self._t5_max_distance(),
            layers=tuple(self._layer_spec(layer, position) for layer in layers),
            tensors=tensors,
            shared_tensors=self._shared_tensors(),
            fused_order=self.get(layout.fused_order),
            transposed=layout.transposed,
            recipe=self.recipe,
            latent=self.latent,
            refusal=self.get(layout.refusal),
            fading=self.get(layout.fading),
            position_offset=layout.position_offset,
            post_norm=norm is None and output_norm is None and self.get(layout.post_norm),
        )

    def _epsilon(self) -> float:
        keys = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
        if not self.get(self.layout.norm_weightless):
            for key in keys:
                if self.settings.get(key) is not None:
                    return self.settings.real(key, least=0.0)
        return self.get(self.layout.norm_epsilon)

    def _layer_spec(self, layer: int, position: Position) -> LayerSpec:
        layout, settings = self.layout, self.settings
        rotary = None
        if position is Position.ROTARY and resolve_layer(layout.is_turned, settings, layer):
            rotary = rotary_of(layout, settings, layer, self.d_head)
        return LayerSpec(
            number=layer,
            scale=resolve_layer(layout.scale, settings, layer),
            rotary=rotary,
            window=resolve_layer(layout.window, settings, layer),
            n_heads=self.n_heads,
            n_kv_heads=self.n_kv_heads,
        )

    def _tensors(self, layer: int) -> dict[str, str]:
        """Name every tensor of one layer by its role; required ones must exist."""
        place = f"{self.prefix}{_layer_name(self.layout, self.settings, layer)}."
        roles = self._input_roles()
        roles["o"] = self.get(self.layout.o)
        norm = self.get(self.layout.norm)
        if norm is not None and not self.get(self.layout.norm_weightless):
            roles["norm"] = norm
        output_norm = self.get(self.layout.output_norm)
        if output_norm is not None:
            roles["output_norm"] = output_norm
        extra = self.get(self.layout.recipe_extra)
        if extra is not None:
            roles["alignment"] = extra
        checked = self._checked(place, roles)
        # Only now: some norms are one a head, and the shapes above have shown their number sane.
        return checked | self._checked(place, self._qk_norm_roles())

    def _input_roles(self) -> dict[str, str]:
        """Name what makes queries, keys and values of tokens."""
        if self.latent is not None:
            return dict(self.latent.names)
        qkv = self.get(self.layout.qkv)
        return dict(zip(("qkv",) if len(qkv) == 1 else ("q", "k", "v"), qkv, strict=True))

    def _checked(self, place: str, roles: Mapping[str, str]) -> dict[str, str]:
        """Return the full names of tensors that must exist, and of biases where there are any."""
        names = {}
        for role, name in roles.items():
            names[role] = self._required(f"{place}{name}.weight", self._shapes(role))
            bias = f"{place}{name}.bias"
            if bias in self.source.tensors:
                names[f"{role}_bias"] = self._required(bias, self._shapes(f"{role}_bias"))
        return names

    def _qk_norm_roles(self) -> dict[str, str]:
        names = self.get(self.layout.qk_norm)
        if names is None:
            return {}
        if "{head}" not in names[0]:
            return dict(zip(("q_norm", "k_norm"), names, strict=True))
        roles = {f"q_norm.{h}": names[0].replace("{head}", str(h)) for h in range(self.n_heads)}
        for h in range(self.n_kv_heads):
            roles[f"k_norm.{h}"] = names[1].replace("{head}", str(h))
        return roles

    def _shapes(self, role: str) -> tuple[tuple[int, ...], ...]:
        """Return the shapes a role may have."""
        q, kv = self.n_heads * self.d_head, self.n_kv_heads * self.d_head
        outs = {"qkv": q + 2 * kv, "q": q, "k": kv, "v": kv, "o": self.d_model}
        base = role.removesuffix("_bias")
        if self.recipe is not None and base in {*outs, "alignment"}:
            return (self._recipe_shape(role),)
        if self.latent is not None and base in {*self.latent.names, "o"}:
            return (_latent_shape(self.latent, role, self.n_heads, self.d_model),)
        if base in outs:
            shape: tuple[int, ...] = (outs[base], q if base == "o" else self.d_model)
            shape = shape[::-1] if self.layout.transposed else shape
            return (shape if base == role else (outs[base],),)
        if base in {"norm", "output_norm"}:
            return ((self.d_model,),)
        # Norms of queries and keys: one gain for all heads, or one for each.
        n = self.n_heads if base.startswith("q") else self.n_kv_heads
        return (self.d_head,), (n * self.d_head,), (n, self.d_head)

    def _recipe_shape(self, role: str) -> tuple[int, ...]:
        """Return the shape of a parameter that maps are computed from (`heads/refined.py`)."""
        d = self.d_model
        if self.recipe is not None and self.recipe.startswith("definite-"):
            return (self.n_heads * d, d)
        if self.recipe is not None and self.recipe.startswith("theorem-"):
            rows = self.n_heads * self.d_head
            return (rows, d if role == "qkv" else self.d_head)
        shapes = {"qkv": (3 * d, d), "o": (d, d), "alignment": (self.n_heads,)}
        return shapes.get(role) or ((3 * d,) if role == "qkv_bias" else (d,))

    def _required(self, name: str, shapes: tuple[tuple[int, ...], ...]) -> str:
        info = self.source.tensors.get(name)
        if info is None:
            raise CheckpointError(
                f"{self.settings.path}: tensor {name!r} is missing. Every layer of this family "
                "has one: are all shards there, and does the config's layer count fit the files?"
            )
        if info.shape not in shapes:
            raise self._misshapen(name, " or ".join(str(list(s)) for s in dict.fromkeys(shapes)))
        return name

    def _misshapen(self, name: str, expected: str) -> CheckpointError:
        return CheckpointError(
            f"{self.settings.path}: tensor {name!r} has shape "
            f"{list(self.source.tensors[name].shape)}; the config says {expected}. "
            "The config and the weights are not of the same model."
        )

    def _shared_tensors(self) -> dict[str, str]:
        names = {"positions": self.layout.positions, "relative_bias": self.layout.relative_bias}
        full = {k: self.prefix + v for k, v in names.items() if v is not None}
        stored = {k: v for k, v in full.items() if v in self.source.tensors}
        for role, name in stored.items():
            shape = self.source.tensors[name].shape
            if role == "positions" and len(shape) not in {2, 3}:
                raise self._misshapen(name, "a table, one row a position")
            if role == "relative_bias" and (len(shape) != 2 or shape[1] != self.n_heads):
                raise self._misshapen(name, f"one row a bucket, {self.n_heads} columns")
        return stored

    def _t5_max_distance(self) -> int:
        """Return the distance from which on all offsets share T5's last bucket."""
        key = "relative_attention_max_distance"
        distance = self.settings.size(key, 128)
        name = self._shared_tensors().get("relative_bias")
        if name is None:
            return distance
        n_buckets = self.source.tensors[name].shape[0]
        if n_buckets < 4:  # near and far, before and after
            raise self._misshapen(name, "4 buckets or more")
        if distance <= n_buckets // 2:
            raise self.settings.wrong(key, distance, f"more than half of {n_buckets} buckets")
        return distance


def _latent_shape(latent: LatentSpec, role: str, n_heads: int, d_model: int) -> tuple[int, ...]:
    """Return the shape of a weight of latent attention, or of its bias."""
    kv_down = latent.kv_rank + latent.d_rotary
    queries = n_heads * (latent.d_plain + latent.d_rotary)
    shapes = {
        "q": (queries, d_model),
        "q_down": (latent.q_rank or 0, d_model),
        "q_down_norm": (latent.q_rank or 0,),
        "q_up": (queries, latent.q_rank or 0),
        "kv_down": (kv_down, d_model),
        "kv_down_norm": (latent.kv_rank,),
        "kv_up": (n_heads * (latent.d_plain + latent.d_value), latent.kv_rank),
        "o": (d_model, n_heads * latent.d_value),
    }
    shape = shapes[role.removesuffix("_bias")]
    return shape[:1] if role.endswith("_bias") else shape


def _attention_like(source: TensorSource) -> str:
    names = [n for n in source.tensors if any(word in n.lower() for word in ATTENTION_WORDS)]
    if not names:
        return f"None of the {len(source.tensors)} tensors found looks like attention."
    shown = "".join(
        f"\n  {name!r} {list(source.tensors[name].shape)}" for name in sorted(names)[:8]
    )
    return f"Attention-like tensors found ({len(names)}):{shown}"


def _unknown(
    reason: UnknownFamilyError, config: Mapping[str, Any], source: TensorSource, path: str
) -> str:
    told = f"{path}: {reason}. {_attention_like(source)}"
    if not config.get("model_type"):
        return told
    return told + (
        "\nTo add a family, write one file in orbitlens/families and its line in FAMILIES of "
        "registry.py (docs/add-a-family.md shows how)."
    )
