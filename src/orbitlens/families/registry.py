"""FAMILIES: every family of models that orbitlens knows, by the model_type of its config.

Enters: a config, or names of classes or of GGUF architectures. Leaves: the `Family`. A new family
is one file beside this one and one line here; `docs/add-a-family.md` walks through it.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.errors import UnknownFamilyError
from orbitlens.families.albert import ALBERT
from orbitlens.families.bert import BERT, ELECTRA, ROBERTA, XLM_ROBERTA
from orbitlens.families.bloom import BLOOM
from orbitlens.families.deberta import DEBERTA_V2
from orbitlens.families.deepseek import DEEPSEEK_V2, DEEPSEEK_V3
from orbitlens.families.distilbert import DISTILBERT
from orbitlens.families.falcon import FALCON
from orbitlens.families.family import Family
from orbitlens.families.feed import Feed
from orbitlens.families.gemma import GEMMA, GEMMA2, GEMMA3, GEMMA3_TEXT
from orbitlens.families.gpt2 import GPT2
from orbitlens.families.gpt_neo import GPT_NEO
from orbitlens.families.gpt_neox import GPT_NEOX
from orbitlens.families.gptj import GPTJ
from orbitlens.families.lfm2 import LFM2, LFM2_MOE
from orbitlens.families.llama import LLAMA, MISTRAL, MIXTRAL, SMOLLM3
from orbitlens.families.mpt import MPT
from orbitlens.families.olmo import OLMO, OLMO2
from orbitlens.families.opt import OPT
from orbitlens.families.orbit import ORBIT
from orbitlens.families.phi import PHI, PHI3
from orbitlens.families.qwen import QWEN2, QWEN3
from orbitlens.families.stablelm import STABLELM
from orbitlens.families.t5 import T5
from orbitlens.families.vit import DEIT, VIT
from orbitlens.families.whisper import WHISPER

FAMILIES: dict[str, Family] = {
    "gpt2": GPT2,
    "gpt_neo": GPT_NEO,
    "gptj": GPTJ,
    "gpt_neox": GPT_NEOX,
    "opt": OPT,
    "bloom": BLOOM,
    "falcon": FALCON,
    "mpt": MPT,
    "phi": PHI,
    "phi3": PHI3,
    "llama": LLAMA,
    "mistral": MISTRAL,
    "mixtral": MIXTRAL,
    "smollm3": SMOLLM3,
    "qwen2": QWEN2,
    "qwen3": QWEN3,
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3_TEXT,
    "gemma3": GEMMA3,
    "deepseek_v2": DEEPSEEK_V2,
    "deepseek_v3": DEEPSEEK_V3,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "olmo": OLMO,
    "olmo2": OLMO2,
    "stablelm": STABLELM,
    "bert": BERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "electra": ELECTRA,
    "distilbert": DISTILBERT,
    "albert": ALBERT,
    "deberta-v2": DEBERTA_V2,
    "orbit": ORBIT,
    "vit": VIT,
    "deit": DEIT,
    "t5": T5,
    "whisper": WHISPER,
}
# GGUF's general.architecture -> the family that is stored so
GGUF_ARCHITECTURES: dict[str, Family] = {
    architecture: family for family in FAMILIES.values() for architecture in family.gguf
}


def family_of(config: Any) -> Family:  # noqa: ANN401 - a mapping, or a config of transformers
    """Return the family of a config: by its model_type, else by the classes it names.

    Raises:
        UnknownFamilyError: no family fits, or the config does not say which one it is.
    """
    get = config.get if isinstance(config, Mapping) else lambda key: getattr(config, key, None)
    model_type, classes = get("model_type"), get("architectures")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    if model_type is None or model_type == "":
        return _of_classes(classes if isinstance(classes, list) else [])
    raise UnknownFamilyError(
        f"the config's model_type is {model_type!r}, which no family describes. "
        f"Known families: {known_families()}"
    )


def known_families() -> str:
    """Return the names of all families, as messages list them."""
    return ", ".join(sorted(FAMILIES))


def _of_classes(names: list[Any]) -> Family:
    for name in names:
        for family in FAMILIES.values():
            if family.has_class(str(name)):
                return family
    classes = (
        f" and its architectures ({', '.join(map(str, names))}) are not known" if names else ""
    )
    raise UnknownFamilyError(
        f"the config has no model_type{classes}. Add that one line to config.json, such as "
        f'"model_type": "llama". Known families: {known_families()}'
    )


def feed_of(config: Any, *, stack: str | None = None) -> Feed:  # noqa: ANN401
    """Return how a model with this config is fed; `stack` picks a tower of an encoder-decoder.

    Raises:
        UnknownFamilyError: nothing is known about how the family is fed.
    """
    family = family_of(config)
    feed = family.feed_for(config, stack)
    if feed is None:
        known = ", ".join(sorted(name for name, other in FAMILIES.items() if other.feed))
        raise UnknownFamilyError(
            f"model_type {family.model_type!r}: it is known where its weights are, but not how it "
            f"takes positions and masks. Known: {known}."
        )
    return feed
