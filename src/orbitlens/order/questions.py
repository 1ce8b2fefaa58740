"""What is asked of a model: which prediction is read, where, and which tokens stay in place.

Enters: a model, its running module and samples. Leaves: a `Subject`, the same for every verb that
reorders tokens. A decoder is asked for the next token; a model that fills masks for a token that is
masked, at the quarter points of the text; a classifier for the class; an encoder without any head
for the mean of its last states, which is what sentence encoders compare. A model of which none of
this can be asked is refused with the reason.
"""

from dataclasses import replace
from typing import Any

from orbitlens.errors import InputError
from orbitlens.families.feed import Kind
from orbitlens.order.asked import HEADS, MASK_FILLERS, Asked, AuditQuestion
from orbitlens.order.subject import Subject, make_subject
from orbitlens.running.model import Model
from orbitlens.running.samples import Samples
from orbitlens.running.special_tokens import special_tokens_of

QUARTERS = (1, 2, 3)  # of the text: where masks are put, one at a time


def subject_for(model: Model, module: Any, samples: Samples) -> Subject:  # noqa: ANN401
    """Return a model with the question that is asked of it.

    Raises:
        InputError: there is no sensible question, for the reason given.
        UnknownFamilyError: nothing is known about how the family is fed.
    """
    kind = type(module).__name__
    feed = model.feed
    companion = feed.companion  # the input of a tower that is not audited
    others = companion(module.config) if companion is not None else {}
    if feed.kind is Kind.IMAGE:
        return make_subject(module, companion=others)
    refuse_senseless(model.name, kind)
    real = [k for k in range(samples.items.shape[1]) if k not in samples.pinned]
    if len(real) < 3:
        raise InputError(
            f"{model.name}: {len(real)} of {samples.items.shape[1]} tokens are no special tokens; "
            "at least 3 are needed, two whose order can change and one to ask for."
        )
    question = AuditQuestion(pinned=samples.pinned)
    if feed.kind is Kind.ENCODER and kind.endswith(MASK_FILLERS):
        places = sorted({real[len(real) * quarter // 4] for quarter in QUARTERS})
        question = replace(
            question, asked=Asked.MASKED, places=tuple(places), mask_id=mask_of(model)
        )
    elif feed.kind is Kind.ENCODER and not kind.endswith(HEADS):
        question = replace(question, asked=Asked.POOLED)
    elif not kind.endswith("ForSequenceClassification"):
        last = real[-1] - samples.items.shape[1]  # what stands behind it is special
        question = replace(question, places=(last,))
    return make_subject(module, question, companion=others)


def refuse_senseless(name: str, kind: str) -> None:
    """Refuse a model by its class, where it makes no prediction that could be compared.

    Raises:
        InputError: with what to give instead.
    """
    if kind == "ElectraForPreTraining":
        raise InputError(
            f"{name}: not asked: an ELECTRA discriminator tells replaced tokens from real ones and "
            "predicts none. Audit its generator (ElectraForMaskedLM)."
        )
    if "For" in kind and not kind.endswith(HEADS):
        raise InputError(
            f"{name}: not asked: {kind} makes no single prediction whose change could be measured. "
            "Audit the model without its head, or with that for language modelling."
        )


def mask_of(model: Model) -> int:
    """Return the token that hides a word.

    Raises:
        InputError: none is known.
    """
    mask = special_tokens_of(model).mask
    if mask is None:
        raise InputError(
            f"{model.name}: not asked: this model fills masks, and no mask token is known; read "
            "without a mask, a token tells its own name. Put its tokenizer or vocab.txt beside the "
            "weights, load it with a tokenizer, or set mask_token_id in its config."
        )
    return mask
