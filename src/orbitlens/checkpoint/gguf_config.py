"""The metadata of a GGUF file in the spelling of a Hugging Face config.

Enters: a `GgufSource`. Leaves: a config that the family table reads like any other. What
llama.cpp's converter changes on the way to GGUF is written down once, in `ARCHITECTURES`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from orbitlens.checkpoint.gguf_file import GgufSource
from orbitlens.errors import CheckpointError, UnknownFamilyError
from orbitlens.families.architecture import Pairing

PLAIN_FLOATS = {"F64", "F32", "F16", "BF16"}


class _Metadata:
    """Typed look-ups of an architecture's own keys; every complaint names the file and the key."""

    def __init__(self, source: GgufSource, architecture: str) -> None:
        self.source, self.architecture = source, architecture

    def get(self, key: str, kinds: type | tuple[type, ...], expected: str) -> Any:  # noqa: ANN401
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
        return self.get(key, int, "a whole number")

    def real(self, key: str) -> float | None:
        value = self.get(key, (int, float), "a number")
        return None if value is None else float(value)

    def size(self, key: str) -> int:
        value = self.whole(key)
        if value is None or value <= 0:
            raise CheckpointError(
                f"{self.source.path}: metadata key '{self.architecture}.{key}' is {value}; "
                "expected a positive whole number. Convert the model again."
            )
        return value

    def has(self, tensor: str) -> bool:
        return tensor in self.source.tensors

    def n_layers(self) -> int:
        n_layers = self.size("block_count")
        if n_layers > len(self.source.tensors):
            raise CheckpointError(
                f"{self.source.path}: the metadata announce {n_layers} layers, and there are "
                f"{len(self.source.tensors)} tensors. Fetch the file again, or convert it again."
            )
        return n_layers

    def d_head(self) -> int:
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


def _no_extras(meta: _Metadata) -> dict[str, Any]:
    return {}


def _gemma_extras(meta: _Metadata, window: int | None, every: int, largest: int) -> dict[str, Any]:
    """Return what Gemma 2 and 3 share: every so many layers, one sees past the window."""
    n_layers = meta.n_layers()
    kinds = ("sliding_attention", "full_attention")
    split = meta.size("embedding_length") // meta.size("attention.head_count")
    return {
        "sliding_window": window or None,
        "layer_types": [kinds[not window or (i + 1) % every == 0] for i in range(n_layers)],
        # No key holds the scale. As in llama.cpp: the largest model alone, known by its number of
        # layers, scales by d_model / n_heads.
        "query_pre_attn_scalar": split if n_layers == largest else meta.d_head(),
    }


def _gemma2_extras(meta: _Metadata) -> dict[str, Any]:
    window, cap = meta.whole("attention.sliding_window"), meta.real("attn_logit_softcapping")
    extras = _gemma_extras(meta, 4096 if window is None else window, every=2, largest=46)
    return extras | {"attn_logit_softcapping": 50.0 if cap is None else cap or None}


def _gemma3_extras(meta: _Metadata) -> dict[str, Any]:
    extras = _gemma_extras(meta, meta.whole("attention.sliding_window"), every=6, largest=62)
    full = _rope_parameters(meta)
    sliding = {
        "rope_type": "default",  # scaling is for the layers without a window alone
        "rope_theta": meta.real("rope.freq_base_swa") or 10000.0,
        "partial_rotary_factor": full["partial_rotary_factor"],
    }
    return extras | {"rope_parameters": {"full_attention": full, "sliding_attention": sliding}}


def _falcon_extras(meta: _Metadata) -> dict[str, Any]:
    # In Hugging Face's spelling only this form of Falcon gives its count of keys as a number.
    return {"new_decoder_architecture": True, "alibi": False}


def _mpt_extras(meta: _Metadata) -> dict[str, Any]:
    bias = meta.real("attention.max_alibi_bias")
    if not bias or meta.has("blk.0.attn_q_norm.weight"):
        raise _uncovered(meta, "an MPT with learned positions or normalised queries and keys")
    clip = meta.real("attention.clamp_kqv")
    return {"attn_config": {"alibi": True, "alibi_bias_max": bias, "clip_qkv": clip or None}}


def _olmo_extras(meta: _Metadata) -> dict[str, Any]:
    return {"clip_qkv": meta.real("attention.clamp_kqv") or None}


def _olmo2_extras(meta: _Metadata) -> dict[str, Any]:
    if meta.whole("attention.sliding_window"):
        raise _uncovered(meta, "OLMo 3 (it has a sliding window)")
    return {}


def _neox_extras(meta: _Metadata) -> dict[str, Any]:
    parallel = meta.get("use_parallel_residual", bool, "true or false")
    return {"use_parallel_residual": parallel is not False}


def _phi3_extras(meta: _Metadata) -> dict[str, Any]:
    return {"sliding_window": meta.whole("attention.sliding_window") or None}


def _stablelm_extras(meta: _Metadata) -> dict[str, Any]:
    return {
        "use_parallel_residual": not meta.has("blk.0.ffn_norm.weight"),
        "qk_layernorm": meta.has("blk.0.attn_q_norm.weight"),
    }


def _t5_extras(meta: _Metadata) -> dict[str, Any]:
    if meta.has("enc.blk.1.attn_rel_b.weight"):
        raise _uncovered(meta, "UMT5 (every layer has its own position biases)")
    return {
        "d_kv": meta.d_head(),
        "num_decoder_layers": meta.whole("decoder_block_count"),
        "relative_attention_num_buckets": meta.whole("attention.relative_buckets_count"),
    }


@dataclass(frozen=True, kw_only=True)
class Storage:
    """How llama.cpp's converter stores one architecture; most keep Hugging Face's layout."""

    model_type: str  # the row of FAMILIES
    pairing: Pairing | None = Pairing.HALVES  # as llama.cpp's rope type; None: not rotary
    layer_norm: bool = False  # else RMS norm; says which epsilon counts
    extras: Callable[[_Metadata], dict[str, Any]] = _no_extras
    flag: str | None = None


# The converter reorders the rows of q and k for some architectures, so that what turns together
# are neighbours, and lays fused weights out as q | k | v for all. It transposes GPT-2's Conv1D and
# adds Gemma's 1 to the norms' gains, so no row here says anything of these.
ARCHITECTURES: dict[str, Storage] = {
    "llama": Storage(model_type="llama", pairing=Pairing.NEIGHBOURS),  # Mistral and Mixtral too
    "qwen2": Storage(model_type="qwen2"),
    "qwen3": Storage(model_type="qwen3"),
    "gemma": Storage(model_type="gemma"),
    "gemma2": Storage(model_type="gemma2", extras=_gemma2_extras),
    "gemma3": Storage(model_type="gemma3_text", extras=_gemma3_extras),
    "gpt2": Storage(model_type="gpt2", pairing=None, layer_norm=True),
    "gptneox": Storage(model_type="gpt_neox", layer_norm=True, extras=_neox_extras),
    "gptj": Storage(
        model_type="gptj",
        pairing=Pairing.NEIGHBOURS,
        layer_norm=True,
        flag="llama.cpp converts no GPT-J: its weights are taken to lie as in Hugging Face's files",
    ),
    "bloom": Storage(model_type="bloom", pairing=None, layer_norm=True),
    "falcon": Storage(model_type="falcon", layer_norm=True, extras=_falcon_extras),
    "mpt": Storage(model_type="mpt", pairing=None, layer_norm=True, extras=_mpt_extras),
    "phi2": Storage(model_type="phi", layer_norm=True),
    "phi3": Storage(model_type="phi3", extras=_phi3_extras),
    "olmo": Storage(
        model_type="olmo", pairing=Pairing.NEIGHBOURS, layer_norm=True, extras=_olmo_extras
    ),
    "olmo2": Storage(model_type="olmo2", extras=_olmo2_extras),
    "stablelm": Storage(model_type="stablelm", layer_norm=True, extras=_stablelm_extras),
    "bert": Storage(model_type="bert", pairing=None, layer_norm=True),  # RoBERTa too
    "t5": Storage(model_type="t5", pairing=None, extras=_t5_extras),
    "t5encoder": Storage(model_type="t5", pairing=None, extras=_t5_extras),
}


# --- metadata -> config ----------------------------------------------------------------------


def gguf_config(source: GgufSource) -> dict[str, Any]:
    """Return a GGUF file's metadata as a Hugging Face config.

    The key `_gguf` says how storage differs from the Hugging Face layout of the family: `names`
    (role -> tensor, within a layer unless it ends in `.weight`), `stack_names` (what differs from
    stack to stack), `fused_order`, `pairing`, `norm_gain_offset`, `frequency_divisors` (per rotated
    pair, or None), `causal` where the file says so, and `flags`.

    Raises:
        UnknownFamilyError: the architecture has no row in `ARCHITECTURES`.
        CheckpointError: a setting is missing or is not of its type.
    """
    architecture = source.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in ARCHITECTURES:
        raise UnknownFamilyError(_unknown(source, architecture))
    storage = ARCHITECTURES[architecture]
    meta = _Metadata(source, architecture)
    config: dict[str, Any] = {
        "model_type": storage.model_type,
        "num_hidden_layers": meta.n_layers(),
        "num_attention_heads": meta.size("attention.head_count"),
        "num_key_value_heads": meta.whole("attention.head_count_kv"),
        "hidden_size": meta.size("embedding_length"),
        "head_dim": meta.d_head(),
        "max_position_embeddings": meta.whole("context_length"),
    }
    if storage.layer_norm:
        config["layer_norm_eps"] = meta.real("attention.layer_norm_epsilon")
    else:
        config["rms_norm_eps"] = meta.real("attention.layer_norm_rms_epsilon")
    if storage.pairing is not None:
        config["rope_parameters"] = _rope_parameters(meta)
    config |= storage.extras(meta)
    config["_gguf"] = _overrides(meta, storage)
    return {key: value for key, value in config.items() if value is not None}


def _rope_parameters(meta: _Metadata) -> dict[str, Any]:
    """Return the rotary encoding in transformers 5's spelling, llama.cpp's defaults filled in."""
    d_head = meta.d_head()
    n_turned = meta.whole("rope.dimension_count") or d_head
    kind = meta.get("rope.scaling.type", str, "a name")
    factor = meta.real("rope.scaling.factor") or meta.real("rope.scale_linear")
    parameters = {
        "rope_type": kind or "linear",
        "rope_theta": meta.real("rope.freq_base") or 10000.0,
        "partial_rotary_factor": _share(n_turned, d_head),
        "factor": factor,
        "original_max_position_embeddings": meta.whole("rope.scaling.original_context_length"),
        "beta_fast": meta.real("rope.scaling.yarn_beta_fast"),
        "beta_slow": meta.real("rope.scaling.yarn_beta_slow"),
        "attention_factor": meta.real("rope.scaling.yarn_attn_factor"),
    }
    if meta.has("rope_factors_long.weight"):
        # Older files of Phi-3 have the factors and do not name the kind.
        parameters |= {
            "rope_type": "longrope",
            "long_factor": _per_pair(meta, "rope_factors_long.weight", n_turned),
            "short_factor": _per_pair(meta, "rope_factors_short.weight", n_turned),
            "attention_factor": meta.real("rope.scaling.attn_factor"),
        }
    elif kind == "none" or (not factor and kind in {None, "linear", "yarn"}):
        parameters["rope_type"] = "default"
    return {key: value for key, value in parameters.items() if value is not None}


def _share(n_turned: int, d_head: int) -> float:
    """Return the float that, times `d_head` and cut to a whole number, is `n_turned` again."""
    share = n_turned / d_head
    return share if int(share * d_head) == n_turned else math.nextafter(share, math.inf)


def _per_pair(meta: _Metadata, name: str, n_turned: int) -> list[float]:
    info = meta.source.tensors.get(name)
    if info is None or info.shape != (n_turned // 2,):
        found = "missing" if info is None else f"of shape {list(info.shape)}"
        raise CheckpointError(
            f"{meta.source.path}: tensor {name!r} is {found}; expected one factor for each of the "
            f"{n_turned // 2} rotated pairs. Convert the model again."
        )
    values = meta.source.read(name)
    if not (torch.isfinite(values) & (values > 0)).all():
        raise CheckpointError(
            f"{meta.source.path}: tensor {name!r} holds factors that are not positive and finite. "
            "Fetch the file again."
        )
    return values.tolist()


def _overrides(meta: _Metadata, storage: Storage) -> dict[str, Any]:
    divisors = None
    if storage.pairing is not None and meta.has("rope_freqs.weight"):  # Llama 3's scaling
        n_turned = meta.whole("rope.dimension_count") or meta.d_head()
        divisors = tuple(_per_pair(meta, "rope_freqs.weight", n_turned))
    overrides = {
        "names": _names(meta),
        "stack_names": _stack_names(storage),
        "fused_order": "blocks" if meta.has("blk.0.attn_qkv.weight") else None,
        "pairing": storage.pairing.value if storage.pairing else None,
        "norm_gain_offset": 0.0,
        "frequency_divisors": divisors,
        "causal": meta.get("attention.causal", bool, "true or false"),
        "flags": _flags(meta, storage),
    }
    return {key: value for key, value in overrides.items() if value is not None}


def _names(meta: _Metadata) -> dict[str, str]:
    two_norms = meta.has("blk.0.attn_norm_2.weight")  # Falcon 40B: the first is the MLP's
    return {
        "layer": "blk.{layer}",
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "qkv": "attn_qkv",
        "o": "attn_o" if meta.architecture.startswith("t5") else "attn_output",
        "norm": "attn_norm_2" if two_norms else "attn_norm",
        "output_norm": "post_attention_norm",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "positions": "position_embd.weight",
    }


def _stack_names(storage: Storage) -> dict[str, dict[str, str]] | None:
    if storage.model_type != "t5":
        return None
    return {
        stack: {
            "layer": short + ".blk.{layer}",
            "relative_bias": short + ".blk.0.attn_rel_b.weight",
        }
        for stack, short in (("encoder", "enc"), ("decoder", "dec"))
    }


def _flags(meta: _Metadata, storage: Storage) -> tuple[str, ...]:
    flags = [] if storage.flag is None else [storage.flag]
    kinds = {info.dtype for name, info in meta.source.tensors.items() if "attn" in name}
    if kinds - PLAIN_FLOATS:
        kept = ", ".join(sorted(kinds - PLAIN_FLOATS))
        flags.append(f"the weights are quantised ({kept}): what is read is the quantised model")
    names = (meta.source.metadata.get(f"general.{key}") for key in ("name", "basename"))
    if meta.architecture == "llama" and any("mistral" in str(name).lower() for name in names):
        flags.append("GGUF files of Mistral do not say whether its attention has a sliding window")
    return tuple(flags)


def _uncovered(meta: _Metadata, what: str) -> UnknownFamilyError:
    return UnknownFamilyError(
        f"{meta.source.path}: this file of architecture {meta.architecture!r} is {what}, which no "
        "row of the family table describes. Use the model in Hugging Face layout if it has one."
    )


def _unknown(source: GgufSource, architecture: object) -> str:
    names = [name for name in source.tensors if "attn" in name]
    shown = "".join(f"\n  {name} {list(source.tensors[name].shape)}" for name in sorted(names)[:8])
    return (
        f"{source.path}: the architecture is {str(architecture)[:60]!r}, which is not known. Known "
        f"in GGUF files: {', '.join(sorted(ARCHITECTURES))}. Attention-like tensors found "
        f"({len(names)}):{shown}\nTo add it, write one row of ARCHITECTURES in "
        "orbitlens/checkpoint/gguf_config.py, and one of FAMILIES if its family is new too."
    )
