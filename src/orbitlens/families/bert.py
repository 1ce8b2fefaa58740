"""BERT and its kin RoBERTa, XLM-RoBERTa and ELECTRA: post-norm encoders."""

from dataclasses import replace
from typing import Any

from orbitlens.families.architecture import Position
from orbitlens.families.family import Family, Hooks
from orbitlens.families.feed import ABSOLUTE_ENCODER, Feed
from orbitlens.families.gguf import Storage
from orbitlens.families.layout import Layout
from orbitlens.families.settings import Settings


def _position_kind(settings: Settings) -> str:
    kind = settings.get("position_embedding_type", "absolute")
    if not isinstance(kind, str):
        raise settings.wrong("position_embedding_type", kind, "a string, such as 'absolute'")
    return kind


def _position(settings: Settings) -> Position:
    return Position.LEARNED if _position_kind(settings) == "absolute" else Position.DISENTANGLED


def _flags(settings: Settings) -> tuple[str, ...]:
    kind = _position_kind(settings)
    if kind == "absolute":
        return ()
    return (f"position_embedding_type {kind!r}: its terms of the score are not read",)


def _from_padding_on(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    """Position ids of RoBERTa count from the padding id on."""
    return replace(feed, first_id=int(config.pad_token_id) + 1)


LAYOUT = Layout(
    stack="encoder",
    causal=lambda c: c.flag("is_decoder"),
    prefixes=("bert.", ""),
    layer="encoder.layer.{layer}",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    o="attention.output.dense",
    norm=None,
    position=_position,
    positions="embeddings.position_embeddings.weight",
    flags=_flags,
)
HOOKS = Hooks(post_norms=("attention.output.LayerNorm", "output.LayerNorm"))
BERT = Family(
    model_type="bert",
    classes=("Bert",),
    stacks=(LAYOUT,),
    feed=ABSOLUTE_ENCODER,
    hooks=HOOKS,
    gguf={"bert": Storage(pairing=None, layer_norm=True)},  # files of RoBERTa too
)
ROBERTA = Family(
    model_type="roberta",
    classes=("Roberta",),
    stacks=(replace(LAYOUT, prefixes=("roberta.", ""), position_offset=2),),
    feed=ABSOLUTE_ENCODER,
    feed_by_config=_from_padding_on,
    hooks=HOOKS,
)
XLM_ROBERTA = replace(ROBERTA, model_type="xlm-roberta", classes=("XLMRoberta",))
ELECTRA = Family(
    model_type="electra",
    classes=("Electra",),
    stacks=(replace(LAYOUT, prefixes=("electra.", "")),),
    feed=ABSOLUTE_ENCODER,
    hooks=HOOKS,
)
