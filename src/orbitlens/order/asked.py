"""The question of an audit: which prediction is read, where, and which items stay in place.

Enters: a model's class and how it is fed. Leaves: the question that its class answers.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from orbitlens.families.feed import Feed, Kind

HEADS = (
    "ForCausalLM",
    "LMHeadModel",
    "ForMaskedLM",
    "ForImageClassification",
    "ForSequenceClassification",
    "ForConditionalGeneration",
    "ForPreTraining",
)
MASK_FILLERS = ("ForMaskedLM", "ForPreTraining")


class Asked(StrEnum):
    """What the prediction is whose dependence on order is measured."""

    NEXT = "the next token, at the last one"
    MASKED = "the token behind the mask"
    UNMASKED = "the last token, which is not masked"  # tells its own name; no audit asks this
    CLASS = "the class"
    STEP = "the decoder's first token"
    STATE = "the state of the last token in the last layer"
    CLASS_STATE = "the state of the class token in the last layer"
    POOLED = "the mean over tokens of their states in the last layer"


IN_STATES = frozenset({Asked.STATE, Asked.CLASS_STATE, Asked.POOLED})


@dataclass(frozen=True, kw_only=True)
class AuditQuestion:
    """What is asked of a model, and where."""

    asked: Asked | None = None  # None: what its class predicts
    pinned: tuple[int, ...] = ()  # items that never move, such as special tokens; -1 is the last
    places: tuple[int, ...] = ()  # items asked for in turn; details are read at the middle one
    mask_id: int | None = None  # the token that hides what is asked for


def usual_question(model: Any, feed: Feed) -> Asked:  # noqa: ANN401 - any transformers model
    """Return what a model's class predicts; of a model that fills masks, without a mask."""
    name = type(model).__name__
    if not name.endswith(HEADS) and not getattr(model, "has_head", False):
        return Asked.CLASS_STATE if feed.kind is Kind.IMAGE else Asked.STATE
    if feed.kind is Kind.IMAGE or name.endswith("ForSequenceClassification"):
        return Asked.CLASS
    if feed.kind is Kind.SEQ2SEQ_ENCODER:
        return Asked.STEP
    return Asked.UNMASKED if name.endswith(MASK_FILLERS) else Asked.NEXT


def is_score(model: Any) -> bool:  # noqa: ANN401
    """Say whether a classifier has one output: a score, of which no distribution can be made."""
    is_classifier = type(model).__name__.endswith("ForSequenceClassification")
    return is_classifier and int(getattr(model.config, "num_labels", 2)) == 1
