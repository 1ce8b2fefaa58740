"""GPT-J: neighbouring coordinates turn together; attention and MLP in parallel."""

from dataclasses import replace

from orbitlens.families import gpt2
from orbitlens.families.architecture import Pairing, Position
from orbitlens.families.family import Family
from orbitlens.families.feed import ROTARY_DECODER
from orbitlens.families.gguf import Metadata, Storage
from orbitlens.families.layout import inverse_root_width


def _flags(meta: Metadata) -> tuple[str, ...]:
    return ("llama.cpp converts no GPT-J: its weights are taken to lie as in Hugging Face's files",)


GPTJ = Family(
    model_type="gptj",
    classes=("GPTJ",),
    stacks=(
        replace(
            gpt2.LAYOUT,
            qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
            o="attn.out_proj",
            fused_order=None,
            transposed=False,
            position=Position.ROTARY,
            positions=None,
            pairing=Pairing.NEIGHBOURS,
            parallel=True,
            scale=inverse_root_width,
        ),
    ),
    feed=ROTARY_DECODER,
    gguf={"gptj": Storage(pairing=Pairing.NEIGHBOURS, layer_norm=True, flags=_flags)},
)
