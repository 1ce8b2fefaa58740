"""LFM2, a hybrid: most layers are short convolutions, a few are attention. Those few are read."""

from dataclasses import replace
from typing import Any

from orbitlens.families.family import Family
from orbitlens.families.feed import Encoding, Feed, with_obstacle
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout
from orbitlens.families.settings import Settings


def _attention_layers(settings: Settings) -> tuple[int, ...]:
    """Return the numbers of the attention layers, as `layer_types` or the older key give them."""
    n_layers = settings.size("n_layers")
    if settings.names("layer_types") is not None:
        kinds = [settings.name_at("layer_types", layer) for layer in range(n_layers)]
        return tuple(k for k, kind in enumerate(kinds) if kind == "full_attention")
    given = settings.get("full_attn_idxs", list(range(n_layers)))
    if not isinstance(given, list) or not all(
        type(number) is int and 0 <= number < n_layers for number in given
    ):
        raise settings.wrong("full_attn_idxs", given, f"numbers of layers, 0 to {n_layers - 1}")
    return tuple(sorted(set(given)))


def _flags(settings: Settings) -> tuple[str, ...]:
    numbers, n_layers = _attention_layers(settings), settings.size("n_layers")
    if len(numbers) == n_layers:
        return ()
    return (
        f"{n_layers - len(numbers)} of {n_layers} layers are convolutions and are skipped: layers "
        f"0 to {len(numbers) - 1} here are the model's {', '.join(map(str, numbers))}",
    )


def _gguf_config(meta: Metadata) -> dict[str, Any]:
    """Files give one count of key heads a layer, 0 where a layer is a convolution."""
    counts = meta.get("attention.head_count_kv", (int, list), "a whole number, or one a layer")
    counts = counts if isinstance(counts, list) else [counts] * meta.n_layers()
    return {
        "num_key_value_heads": max((count for count in counts if count), default=None),
        "full_attn_idxs": [layer for layer, count in enumerate(counts) if count],
    }


STORAGE = Storage(config=_gguf_config, kv_heads_by_layer=True)
LFM2 = Family(
    model_type="lfm2",
    classes=("Lfm2",),
    stacks=(
        Layout(
            o="self_attn.out_proj",
            norm="operator_norm",
            norm_epsilon=lambda c: c.real("norm_eps", 1e-5, least=0.0),
            qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
            attention_layers=_attention_layers,
            rotary_base=1e6,
            flags=_flags,
        ),
    ),
    feed=with_obstacle(
        Feed(encoding=Encoding.ROTARY, ids=None, mask=None),
        "a convolution over neighbouring tokens sees order itself, and no switch takes it out",
    ),
    gguf={"lfm2": STORAGE},
)
LFM2_MOE = replace(LFM2, model_type="lfm2_moe", classes=("Lfm2Moe",), gguf={"lfm2moe": STORAGE})
