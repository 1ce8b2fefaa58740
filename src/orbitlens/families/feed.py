"""Feed: how a model is told positions and masks from outside, and what it reads.

Enters: nothing (plain data, filled by one file a family). Leaves: which argument takes position
ids, which takes a 4-D mask, which attention modules must be given theirs by a hook because the
model's own arguments do not reach them, and what stands in the way where something cannot be
switched off.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeAlias

Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]
Steer: TypeAlias = Callable[[tuple[Any, ...], dict[str, Any], Any, bool], Arguments]


class Encoding(StrEnum):
    """How positions enter, if at all; "absolute" moves when all ids shift, the others do not."""

    NONE = "none"
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
    ids_follow_mask: bool = False  # ids that are not given are counted along the attention mask
    first_id: int = 0  # the id of the first token
    mask: str | None = "attention_mask"  # the argument that takes a 4-D mask; None: by a hook
    by_layer_type: bool = False  # the mask argument takes one mask for each type of layer
    window: int | None = None  # sliding window of all layers, or of the sliding ones by type
    attention: str | None = None  # class of the modules that a hook gives masks and biases to
    steer: Steer | None = None  # what that hook does to the arguments of such a module
    mask_buffers: tuple[str, str] | None = None  # class and buffer, where a mask is kept there too
    n_special: int = 0  # tokens in front that are no items: class and distillation tokens
    causal: bool = True  # the model's own mask
    companion: Callable[[Any], dict[str, Any]] | None = None  # config -> the other tower's input
    shift_matters: bool | None = None  # does shifting all ids move the output? None: unknown
    obstacle_encoding: str | None = None  # why the encoding cannot be removed
    obstacle_mask: str | None = None  # why the mask cannot be changed


ROTARY_DECODER = Feed(shift_matters=False)
ABSOLUTE_DECODER = replace(ROTARY_DECODER, encoding=Encoding.ABSOLUTE, shift_matters=True)
ABSOLUTE_ENCODER = replace(ABSOLUTE_DECODER, kind=Kind.ENCODER, causal=False)
ALIBI_DECODER = Feed(encoding=Encoding.ALIBI, ids=None, mask=None)
ROTARY_BY_LAYER_TYPE = replace(ROTARY_DECODER, by_layer_type=True)


def as_it_is(feed: Feed, config: Any) -> Feed:  # noqa: ANN401 - any config
    """Return the feed: nothing of it depends on the family's config."""
    return feed


def with_window(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    """Return the feed with the config's sliding window."""
    window = getattr(config, "sliding_window", None)
    return replace(feed, window=int(window) if window else None)


def with_obstacle(feed: Feed, reason: str) -> Feed:
    """Return the feed of a model whose encoding and mask cannot be switched off."""
    return replace(feed, obstacle_encoding=reason, obstacle_mask=reason)


def settled(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    """Settle what configs of any family may say: a decoder made of an encoder, or the reverse."""
    if feed.kind is Kind.ENCODER and getattr(config, "is_decoder", False):
        feed = replace(feed, causal=True, kind=Kind.DECODER)
    if getattr(config, "use_bidirectional_attention", None):
        feed = replace(feed, causal=False)
    return feed


def settled_rotary(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    """Settle whether a shift of all ids matters where frequencies depend on the largest id."""
    rope = getattr(config, "rope_parameters", None) or {}
    if isinstance(rope, dict) and rope.get("rope_type") in {"dynamic", "longrope"}:
        return replace(feed, shift_matters=None)
    return feed


# --- masks, without importing torch here ------------------------------------------------------


def lowest(dtype: Any) -> float:  # noqa: ANN401 - a torch dtype
    """Return the number that stands for "hidden" in additive masks of a type."""
    import torch

    return float(torch.finfo(dtype).min)


def additive(mask: Any, dtype: Any) -> Any:  # noqa: ANN401 - tensors
    """Return a mask of who sees whom as what is added to scores, with batch and head axes."""
    zeros = mask.new_zeros(mask.shape, dtype=dtype)
    return zeros.masked_fill_(~mask, lowest(dtype))[None, None]
