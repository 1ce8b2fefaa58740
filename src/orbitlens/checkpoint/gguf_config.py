"""The metadata of a GGUF file in the spelling of a Hugging Face config.

Enters: a `GgufSource`. Leaves: a config that families read like any other. What llama.cpp's
converter changes on the way to GGUF is written down in each family's `Storage`.
"""

from typing import Any

from orbitlens.checkpoint.gguf_file import GgufSource
from orbitlens.errors import UnknownFamilyError
from orbitlens.families.gguf import TENSOR_NAMES, Metadata, Storage
from orbitlens.families.registry import GGUF_ARCHITECTURES

PLAIN_FLOATS = {"F64", "F32", "F16", "BF16"}


def config_of_gguf(source: GgufSource) -> dict[str, Any]:
    """Return a GGUF file's metadata as a Hugging Face config.

    The key `_gguf` says how storage differs from the Hugging Face layout of the family: `names`
    (role -> tensor, within a layer unless it ends in `.weight`), `stack_names` (what differs from
    stack to stack), `fused_order`, `pairing`, `norm_gain_offset`, `frequency_divisors` (per rotated
    pair, or None), `causal` where the file says so, and `flags`.

    Raises:
        UnknownFamilyError: no family is stored as this architecture.
        CheckpointError: a setting is missing or is not of its type.
    """
    architecture = source.metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF_ARCHITECTURES:
        raise UnknownFamilyError(_unknown(source, architecture))
    family = GGUF_ARCHITECTURES[architecture]
    storage = family.gguf[architecture]
    meta = Metadata(source, architecture)
    config: dict[str, Any] = {
        "model_type": family.model_type,
        "num_hidden_layers": meta.n_layers(),
        "num_attention_heads": meta.size("attention.head_count"),
        "hidden_size": meta.size("embedding_length"),
        "head_dim": meta.d_head(),
        "max_position_embeddings": meta.whole("context_length"),
    }
    if not storage.kv_heads_by_layer:
        config["num_key_value_heads"] = meta.whole("attention.head_count_kv")
    if storage.layer_norm:
        config["layer_norm_eps"] = meta.real("attention.layer_norm_epsilon")
    else:
        config["rms_norm_eps"] = meta.real("attention.layer_norm_rms_epsilon")
    if storage.pairing is not None:
        config["rope_parameters"] = meta.rope_parameters()
    config |= storage.config(meta)
    config["_gguf"] = _overrides(meta, storage)
    return {key: value for key, value in config.items() if value is not None}


def _overrides(meta: Metadata, storage: Storage) -> dict[str, Any]:
    divisors = None
    if storage.pairing is not None and meta.has("rope_freqs.weight"):  # Llama 3's scaling
        n_turned = meta.whole("rope.dimension_count") or meta.d_head()
        divisors = tuple(meta.per_pair("rope_freqs.weight", n_turned))
    overrides = {
        "names": TENSOR_NAMES | storage.names(meta),
        "stack_names": storage.stack_names or None,
        "fused_order": "blocks" if meta.has("blk.0.attn_qkv.weight") else None,
        "pairing": storage.pairing.value if storage.pairing else None,
        "norm_gain_offset": 0.0,
        "frequency_divisors": divisors,
        "causal": meta.get("attention.causal", bool, "true or false"),
        "flags": (*storage.flags(meta), *_quantised(meta)),
    }
    return {key: value for key, value in overrides.items() if value is not None}


def _quantised(meta: Metadata) -> tuple[str, ...]:
    kinds = {info.dtype for name, info in meta.source.tensors.items() if "attn" in name}
    if not kinds - PLAIN_FLOATS:
        return ()
    kept = ", ".join(sorted(kinds - PLAIN_FLOATS))
    return (f"the weights are quantised ({kept}): what is read is the quantised model",)


def _unknown(source: GgufSource, architecture: object) -> str:
    names = [name for name in source.tensors if "attn" in name]
    shown = "".join(f"\n  {name} {list(source.tensors[name].shape)}" for name in sorted(names)[:8])
    return (
        f"{source.path}: the architecture is {str(architecture)[:60]!r}, which is not known. Known "
        f"in GGUF files: {', '.join(sorted(GGUF_ARCHITECTURES))}. Attention-like tensors found "
        f"({len(names)}):{shown}\nTo add it, give the family's file in orbitlens/families a "
        "`gguf` entry (docs/add-a-family.md shows how)."
    )
