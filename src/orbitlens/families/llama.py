"""Llama, and its kin Mistral and Mixtral, which have a sliding window."""

from dataclasses import replace

from orbitlens.families.architecture import Pairing
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER, with_window
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import Layout, window_everywhere


def _gguf_flags(meta: Metadata) -> tuple[str, ...]:
    names = (meta.source.metadata.get(f"general.{key}") for key in ("name", "basename"))
    if any("mistral" in str(name).lower() for name in names):
        return ("GGUF files of Mistral do not say whether its attention has a sliding window",)
    return ()


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
