"""DeBERTa v2 and v3: scores have position terms of their own, which are flagged and not read."""

from dataclasses import replace
from typing import Any

from orbitlens.families import bert
from orbitlens.families.architecture import Position
from orbitlens.families.family import Family
from orbitlens.families.feed import ABSOLUTE_ENCODER, Arguments, Encoding, Feed, with_obstacle
from orbitlens.families.layout import inverse_root_width
from orbitlens.families.settings import Settings


def _terms(settings: Settings) -> list[str]:
    value = settings.get("pos_att_type", [])
    names = value.split("|") if isinstance(value, str) else settings.names("pos_att_type") or []
    return [name for name in ("c2p", "p2c", "p2p") if name in names]


def _scale(settings: Settings, layer: int) -> float:
    terms = 1 + sum(name in _terms(settings) for name in ("c2p", "p2c"))
    return inverse_root_width(settings, layer) / float(terms) ** 0.5


def _position(settings: Settings) -> Position:
    relative = settings.flag("relative_attention")
    absolute = settings.flag("position_biased_input", True)
    return Position.DISENTANGLED if relative else (Position.LEARNED if absolute else Position.NONE)


def _flags(settings: Settings) -> tuple[str, ...]:
    if not settings.flag("relative_attention"):
        return ()
    terms = ", ".join(_terms(settings)) or "none"
    return (
        f"DeBERTa's position terms of the score ({terms}) are not part of a head's score map: "
        "rates, certificates and recomputed attention hold the content-to-content part alone",
    )


def _steer(args: tuple[Any, ...], named: dict[str, Any], mask: Any, encoding: bool) -> Arguments:  # noqa: ANN401
    offsets = named.get("relative_pos")
    if offsets is not None and not encoding:
        named["relative_pos"] = offsets.new_zeros(offsets.shape)
    return (args[0], mask[None, None], *args[2:]), named


def _feed(feed: Feed, config: Any) -> Feed:  # noqa: ANN401
    feed = replace(feed, shift_matters=bool(config.position_biased_input))
    if not getattr(config, "conv_kernel_size", 0):
        return feed
    return with_obstacle(
        feed, "its first layer convolves neighbouring tokens, which no switch takes out"
    )


DEBERTA_V2 = Family(
    model_type="deberta-v2",
    classes=("DebertaV2",),
    stacks=(
        replace(
            bert.LAYOUT,
            causal=False,
            prefixes=("deberta.", ""),
            qkv=(
                "attention.self.query_proj",
                "attention.self.key_proj",
                "attention.self.value_proj",
            ),
            position=_position,
            scale=_scale,
            flags=_flags,
        ),
    ),
    feed=replace(
        ABSOLUTE_ENCODER,
        encoding=Encoding.DISENTANGLED,
        mask=None,
        attention="DebertaV2Attention",
        steer=_steer,
    ),
    feed_by_config=_feed,
    hooks=bert.HOOKS,
)
