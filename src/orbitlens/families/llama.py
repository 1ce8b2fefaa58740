"""Llama and its kin: Mistral and Mixtral have a sliding window, SmolLM3 layers without rotation."""

from dataclasses import replace

from orbitlens.families.architecture import Pairing
from orbitlens.families.family import Family, RotationSwitches
from orbitlens.families.feed import ROTARY_DECODER, with_window
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout, window_everywhere
from orbitlens.families.settings import Settings


def _gguf_flags(meta: Metadata) -> tuple[str, ...]:
    names = (meta.source.metadata.get(f"general.{key}") for key in ("name", "basename"))
    if any("mistral" in str(name).lower() for name in names):
        return ("GGUF files of Mistral do not say whether its attention has a sliding window",)
    return ()


def _is_turned(settings: Settings, layer: int) -> bool:
    """Return whether SmolLM3 rotates a layer: every fourth is left as it is, or as listed."""
    listed = settings.get("no_rope_layers")
    if listed is None:
        return (layer + 1) % settings.size("no_rope_layer_interval", 4) != 0
    if not isinstance(listed, list) or len(listed) <= layer:
        raise settings.wrong("no_rope_layers", listed, "a list with 1 or 0 for each layer")
    return bool(listed[layer])  # 1: the layer is rotated, whatever the name says


LAYOUT = Layout()
LLAMA = Family(
    model_type="llama",
    classes=("Llama", "LLaMA"),
    stacks=(LAYOUT,),
    feed=ROTARY_DECODER,
    # Files of Mistral and Mixtral say "llama" too.
    gguf={"llama": Storage(pairing=Pairing.NEIGHBOURS, flags=_gguf_flags)},
)
MISTRAL = Family(
    model_type="mistral",
    classes=("Mistral",),
    stacks=(replace(LAYOUT, window=window_everywhere),),
    feed=ROTARY_DECODER,
    feed_by_config=with_window,
)
MIXTRAL = replace(
    MISTRAL,
    model_type="mixtral",
    classes=("Mixtral",),
    stacks=(replace(LAYOUT, window=window_everywhere, rotary_base=1e6),),
)
SMOLLM3 = replace(
    LLAMA,
    model_type="smollm3",
    classes=("SmolLM3",),
    stacks=(replace(LAYOUT, rotary_base=2e6, is_turned=_is_turned),),
    rotation=RotationSwitches(attention="use_rope", by_layer="no_rope_layers"),
    gguf={},
)
