"""Storage: how llama.cpp's converter stores a family in GGUF files, and the metadata it writes.

Enters: a GGUF file's metadata and tensor names. Leaves: typed look-ups (`Metadata`), what a family
says about its files (`Storage`), and a `Layout` under GGUF's uniform tensor names.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

from orbitlens.errors import CheckpointError, UnknownFamilyError
from orbitlens.families.architecture import Pairing
from orbitlens.families.layout import Layout, PerConfig


@runtime_checkable
class GgufFile(Protocol):
    """A GGUF file, as far as metadata go."""

    path: str
    metadata: Mapping[str, Any]

    @property
    def tensors(self) -> Mapping[str, Any]:
        """Every tensor's name and description."""
        ...

    def read(self, name: str) -> Any:  # noqa: ANN401 - a tensor
        """Return one tensor."""
        ...


class Metadata:
    """Typed look-ups of an architecture's own keys; every complaint names the file and the key."""

    def __init__(self, source: GgufFile, architecture: str) -> None:
        """Wrap the metadata of `source`, a file of this `architecture`."""
        self.source, self.architecture = source, architecture

    def get(self, key: str, kinds: type | tuple[type, ...], expected: str) -> Any:  # noqa: ANN401
        """Return the value at a key of the architecture; None where there is none."""
        name = f"{self.architecture}.{key}"
        value = self.source.metadata.get(name)
        wrong = isinstance(value, bool) != (kinds is bool) or not isinstance(value, kinds)
        if value is not None and wrong:
            raise CheckpointError(
                f"{self.source.path}: metadata key {name!r} is {str(value)[:60]}; expected "
                f"{expected}. Convert the model again."
            )
        return value

    def whole(self, key: str) -> int | None:
        """Return a whole number."""
        return self.get(key, int, "a whole number")

    def real(self, key: str) -> float | None:
        """Return a number."""
        value = self.get(key, (int, float), "a number")
        return None if value is None else float(value)

    def size(self, key: str) -> int:
        """Return a positive whole number, which must be there."""
        value = self.whole(key)
        if value is None or value <= 0:
            raise CheckpointError(
                f"{self.source.path}: metadata key '{self.architecture}.{key}' is {value}; "
                "expected a positive whole number. Convert the model again."
            )
        return value

    def has(self, tensor: str) -> bool:
        """Say whether the file has a tensor."""
        return tensor in self.source.tensors

    def n_layers(self) -> int:
        """Return the number of layers, checked against the number of tensors."""
        n_layers = self.size("block_count")
        if n_layers > len(self.source.tensors):
            raise CheckpointError(
                f"{self.source.path}: the metadata announce {n_layers} layers, and there are "
                f"{len(self.source.tensors)} tensors. Fetch the file again, or convert it again."
            )
        return n_layers

    def d_head(self) -> int:
        """Return the width of a head, one for keys and values."""
        d_model, n_heads = self.size("embedding_length"), self.size("attention.head_count")
        keys, values = self.whole("attention.key_length"), self.whole("attention.value_length")
        width = d_model // n_heads if keys is None else keys
        if width <= 0 or values not in {None, width} or (keys is None and d_model % n_heads):
            raise CheckpointError(
                f"{self.source.path}: the metadata give {n_heads} heads with keys of width {keys} "
                f"and values of width {values} in a model of width {d_model}; expected one width "
                "for both, or a model that splits evenly into heads. Convert the model again."
            )
        return width

    def uncovered(self, what: str) -> UnknownFamilyError:
        """Return the error for a file of a known architecture that is a model of another kind."""
        return UnknownFamilyError(
            f"{self.source.path}: this file of architecture {self.architecture!r} is {what}, which "
            "no family describes. Use the model in Hugging Face layout if it has one."
        )

    # --- rotary encodings --------------------------------------------------------------------

    def rope_parameters(self) -> dict[str, Any]:
        """Return the rotary encoding in transformers 5's spelling, llama.cpp's defaults filled in.

        Older files of Phi-3 have factors for long contexts and do not name the kind.
        """
        d_head = self.d_head()
        n_turned = self.whole("rope.dimension_count") or d_head
        kind = self.get("rope.scaling.type", str, "a name")
        factor = self.real("rope.scaling.factor") or self.real("rope.scale_linear")
        parameters = {
            "rope_type": kind or "linear",
            "rope_theta": self.real("rope.freq_base") or 10000.0,
            "partial_rotary_factor": share_of(n_turned, d_head),
            "factor": factor,
            "original_max_position_embeddings": self.whole("rope.scaling.original_context_length"),
            "beta_fast": self.real("rope.scaling.yarn_beta_fast"),
            "beta_slow": self.real("rope.scaling.yarn_beta_slow"),
            "attention_factor": self.real("rope.scaling.yarn_attn_factor"),
        }
        if self.has("rope_factors_long.weight"):
            parameters |= {
                "rope_type": "longrope",
                "long_factor": self.per_pair("rope_factors_long.weight", n_turned),
                "short_factor": self.per_pair("rope_factors_short.weight", n_turned),
                "attention_factor": self.real("rope.scaling.attn_factor"),
            }
        elif kind == "none" or (not factor and kind in {None, "linear", "yarn"}):
            parameters["rope_type"] = "default"
        return {key: value for key, value in parameters.items() if value is not None}

    def per_pair(self, name: str, n_turned: int) -> list[float]:
        """Return a tensor of one positive factor for each rotated pair."""
        info = self.source.tensors.get(name)
        if info is None or info.shape != (n_turned // 2,):
            there = "missing" if info is None else f"of shape {list(info.shape)}"
            raise CheckpointError(
                f"{self.source.path}: tensor {name!r} is {there}; expected one factor for each of "
                f"the {n_turned // 2} rotated pairs. Convert the model again."
            )
        values = self.source.read(name)
        if not (values.isfinite() & (values > 0)).all():
            raise CheckpointError(
                f"{self.source.path}: tensor {name!r} holds factors that are not positive and "
                "finite. Fetch the file again."
            )
        factors: list[float] = values.tolist()
        return factors


def share_of(n_turned: int, d_head: int) -> float:
    """Return the float that, times `d_head` and cut to a whole number, is `n_turned` again."""
    share = n_turned / d_head
    return share if int(share * d_head) == n_turned else math.nextafter(share, math.inf)


def nothing_more(meta: Metadata) -> dict[str, Any]:
    """Return nothing: the general metadata say all there is to say."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How llama.cpp's converter stores one architecture; most keep Hugging Face's layout.

    The converter reorders the rows of q and k for some architectures, so that what turns together
    are neighbours, and lays fused weights out as q | k | v for all. It transposes GPT-2's Conv1D
    and adds Gemma's 1 to the norms' gains, so nothing here speaks of these.
    """

    pairing: Pairing | None = Pairing.HALVES  # as llama.cpp's rope type; None: not rotary
    kv_heads_by_layer: bool = False  # the count of key heads may be a list; `config` reads it
    layer_norm: bool = False  # else RMS norm; says which epsilon counts
    config: Callable[[Metadata], dict[str, Any]] = nothing_more  # settings of its own
    names: Callable[[Metadata], dict[str, str]] = nothing_more  # role -> tensor, where different
    stack_names: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    flags: Callable[[Metadata], tuple[str, ...]] = lambda meta: ()


TENSOR_NAMES = {
    "layer": "blk.{layer}",
    "q": "attn_q",
    "k": "attn_k",
    "v": "attn_v",
    "qkv": "attn_qkv",
    "o": "attn_output",
    "norm": "attn_norm",
    "output_norm": "post_attention_norm",
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "positions": "position_embd.weight",
}


def layout_in_gguf(layout: Layout, overrides: Mapping[str, Any]) -> Layout:
    """Return `layout` with GGUF's uniform tensor names and storage, from `gguf_config`'s key."""
    names = {**overrides["names"], **overrides.get("stack_names", {}).get(layout.stack, {})}
    fused = overrides.get("fused_order")
    return replace(
        layout,
        prefixes=("",),
        causal=overrides.get("causal", layout.causal),
        layer=names["layer"],
        qkv=(names["qkv"],) if fused else (names["q"], names["k"], names["v"]),
        o=names["o"],
        fused_order=fused,
        transposed=False,
        norm=names["norm"] if layout.norm is not None else None,
        output_norm=names["output_norm"] if layout.output_norm else None,
        qk_norm=_renamed(layout.qk_norm, (names["q_norm"], names["k_norm"])),
        norm_gain_offset=overrides.get("norm_gain_offset", 0.0),
        positions=names.get("positions") if layout.positions else None,
        position_offset=overrides.get("position_offset", layout.position_offset),
        relative_bias=names.get("relative_bias") if layout.relative_bias else None,
        pairing=Pairing(overrides["pairing"]) if "pairing" in overrides else layout.pairing,
    )


def _renamed(
    entry: PerConfig[tuple[str, str] | None], names: tuple[str, str]
) -> PerConfig[tuple[str, str] | None]:
    """Return `names` wherever the entry gives any; some models of a family have no such norm."""
    if callable(entry):
        return lambda settings: names if entry(settings) else None
    return names if entry else None
