"""FEEDS: how each family is told positions and masks from outside. A table, not branches.

Enters: a model's config. Leaves: a `Feed`: which argument takes position ids, which takes a 4-D
mask, which attention modules must be given theirs by a hook because the model's own arguments do
not reach them, and what stands in the way where something cannot be switched off.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from orbitlens.errors import UnknownFamilyError


class Encoding(StrEnum):
    """How positions enter; "absolute" moves when all ids shift, the others do not."""

    ABSOLUTE = "absolute"
    ROTARY = "rotary"
    ALIBI = "alibi"
    T5_BIAS = "t5-bias"
    DISENTANGLED = "disentangled"


class Kind(StrEnum):
    """What the items are, and where the prediction is read off."""

    DECODER = "decoder"  # tokens; next token at the last one
    ENCODER = "encoder"  # tokens; at the masked (or last) one
    IMAGE = "image"  # patches; at the class token
    SEQ2SEQ_ENCODER = "seq2seq-encoder"  # tokens of the encoder; the decoder's first step
    SEQ2SEQ_DECODER = "seq2seq-decoder"  # tokens of the decoder; next token at the last one


@dataclass(frozen=True, kw_only=True)
class Feed:
    """How one family is fed; defaults are those of Llama."""

    kind: Kind = Kind.DECODER
    encoding: Encoding = Encoding.ROTARY
    ids: str | None = "position_ids"  # the argument that takes position ids
    mask: str | None = "attention_mask"  # the argument that takes a 4-D mask; None: by a hook
    by_layer_type: bool = False  # the mask argument takes one mask for each type of layer
    attention: str | None = None  # class of the modules that a hook gives masks and biases to
    first_id: int = 0  # the id of the first token
    n_special: int = 0  # tokens in front that are no items: class and distillation tokens
    causal: bool = True  # the model's own mask
    shift_matters: bool | None = None  # does shifting all ids move the output? None: unknown
    obstacle_encoding: str | None = None  # why the encoding cannot be removed
    obstacle_mask: str | None = None  # why the mask cannot be changed


LLAMA = Feed(shift_matters=False)
GPT2 = replace(LLAMA, encoding=Encoding.ABSOLUTE, shift_matters=True)
BY_TYPE = replace(LLAMA, by_layer_type=True)
ALIBI = Feed(encoding=Encoding.ALIBI, ids=None, mask=None)
BERT = replace(GPT2, kind=Kind.ENCODER, causal=False)
VIT = Feed(kind=Kind.IMAGE, encoding=Encoding.ABSOLUTE, ids=None, n_special=1, causal=False)

FEEDS: dict[str, Feed] = {
    "gpt2": GPT2,
    "gpt_neo": GPT2,
    "gptj": LLAMA,
    "gpt_neox": LLAMA,
    "opt": GPT2,
    "bloom": replace(ALIBI, attention="BloomAttention"),
    "falcon": LLAMA,
    "mpt": replace(ALIBI, attention="MptAttention"),
    "phi": LLAMA,
    "phi3": LLAMA,
    "llama": LLAMA,
    "mistral": LLAMA,
    "mixtral": LLAMA,
    "qwen2": BY_TYPE,
    "qwen3": BY_TYPE,
    "gemma": LLAMA,
    "gemma2": BY_TYPE,
    "gemma3_text": BY_TYPE,
    "olmo": LLAMA,
    "olmo2": LLAMA,
    "stablelm": LLAMA,
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "electra": BERT,
    "distilbert": BERT,
    "albert": BERT,
    "deberta-v2": replace(
        BERT, encoding=Encoding.DISENTANGLED, mask=None, attention="DebertaV2Attention"
    ),
    "orbit": LLAMA,  # takes ids and a 4-D mask whatever its switches are
    "vit": VIT,
    "deit": replace(VIT, n_special=2),
    "t5": Feed(
        kind=Kind.SEQ2SEQ_ENCODER, encoding=Encoding.T5_BIAS, ids=None, mask=None, causal=False
    ),
    "whisper": replace(
        GPT2,
        kind=Kind.SEQ2SEQ_DECODER,
        ids="decoder_position_ids",
        mask="decoder_attention_mask",
    ),
}


def feed_of(config: Any, *, stack: str | None = None) -> Feed:  # noqa: ANN401 - any config
    """Return how a model with this config is fed; `stack` picks a tower of an encoder-decoder.

    Raises:
        UnknownFamilyError: no row describes the family.
    """
    family = str(config.model_type)
    if family not in FEEDS:
        raise UnknownFamilyError(
            f"model_type {family!r}: the audit does not know how this family takes positions and "
            f"masks. Known: {', '.join(sorted(FEEDS))}."
        )
    feed = FEEDS[family]
    if family == "t5" and stack == "decoder":
        feed = replace(feed, kind=Kind.SEQ2SEQ_DECODER, mask="decoder_attention_mask", causal=True)
    if family == "whisper" and stack == "encoder":
        reason = "a convolution over neighbouring frames makes its tokens, and it sees order itself"
        feed = replace(
            feed, kind=Kind.SEQ2SEQ_ENCODER, obstacle_encoding=reason, obstacle_mask=reason
        )
    return _by_config(feed, family, config)


def _by_config(feed: Feed, family: str, config: Any) -> Feed:  # noqa: ANN401
    """Settle what depends on the config and not on the family alone."""
    if family in {"roberta", "xlm-roberta"}:  # ids count from the padding id on
        feed = replace(feed, first_id=int(config.pad_token_id) + 1)
    if feed.kind is Kind.ENCODER and getattr(config, "is_decoder", False):
        feed = replace(feed, causal=True, kind=Kind.DECODER)
    if getattr(config, "use_bidirectional_attention", None):
        feed = replace(feed, causal=False)
    if family == "orbit":
        feed = _orbit(feed, config)
    if family == "falcon" and config.alibi:
        feed = _falcon_with_alibi(config)
    if family == "deberta-v2":
        feed = _deberta(feed, config)
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in {"dynamic", "longrope"}:
        feed = replace(feed, shift_matters=None)  # frequencies depend on the largest id
    return feed


def _orbit(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    encodings = {"rotary": Encoding.ROTARY, "alibi": Encoding.ALIBI, "t5": Encoding.T5_BIAS}
    feed = replace(
        feed,
        encoding=encodings.get(config.position, Encoding.ABSOLUTE),
        causal=config.mask == "causal",
        shift_matters=config.position in {"learned", "sinusoidal"},
    )
    if config.image_size is not None:  # the class token stands at 0, patches from 1 on
        feed = replace(feed, kind=Kind.IMAGE, n_special=1, first_id=1, shift_matters=None)
        if getattr(config, "attention", "softmax") == "separable":
            reason = "separable attention tells columns and rows apart without any encoding or mask"
            feed = replace(feed, obstacle_encoding=reason, obstacle_mask=reason)
        return feed
    return feed if feed.causal else replace(feed, kind=Kind.ENCODER)


def _falcon_with_alibi(config: Any) -> Feed:  # noqa: ANN401
    feed = replace(ALIBI, attention="FalconAttention")
    if config._attn_implementation == "sdpa":
        return feed
    reason = "eager Falcon adds ALiBi twice; load the model with attn_implementation='sdpa'"
    return replace(feed, obstacle_encoding=reason, obstacle_mask=reason)


def _deberta(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    feed = replace(feed, shift_matters=bool(config.position_biased_input))
    if getattr(config, "conv_kernel_size", 0):
        reason = "its first layer convolves neighbouring tokens, which no switch takes out"
        feed = replace(feed, obstacle_encoding=reason, obstacle_mask=reason)
    return feed
