"""The sections of a report, in the order of the page: one file each."""

from orbitlens.reporting.sections import (
    agreement,
    cuts,
    depth,
    heads,
    orbits,
    order,
    positions,
    slices,
    story,
    trust,
)
from orbitlens.reporting.sections.section import Section

STORY = Section(
    key="story", title="The story", term="direction", body=story.story_section,
    lead="What the model does to the directions of tokens.", charts=orbits.charts,
)  # fmt: skip
SECTIONS = (
    Section(
        key="heads", title="Map of heads", term="index",
        lead="What each head does to directions.",
        tables=heads.tables, pictures=heads.pictures, columns=1,
    ),
    Section(
        key="orbits", title="Orbits", term="orbit", lead="Where real tokens go.",
        tables=orbits.tables, pictures=orbits.pictures, columns=2,
    ),
    Section(
        key="depth", title="Through depth", term="change", body=depth.depth_section,
        lead="What attention, MLPs and norms do to directions, layer by layer.",
        charts=depth.charts, tables=depth.tables,
    ),
    Section(
        key="agreement", title="Predicted against measured", term="closure",
        body=agreement.agreement_section,
        lead="How well weights and statistics predict what attention does.",
        charts=agreement.charts, tables=agreement.tables, columns=2,
    ),
    Section(
        key="order", title="Sense of order", term="order", body=order.order_section,
        lead="What the model makes of the order of its tokens, and through what.",
        charts=order.charts, tables=order.tables,
    ),
    Section(
        key="positions", title="Positions", term="reach", body=positions.positions_section,
        lead="What carries scores over distance, and how far a context reaches.",
        charts=positions.charts, tables=positions.tables,
    ),
    Section(
        key="cuts", title="Cuts", term="cut", body=cuts.cuts_section, is_shown=cuts.is_shown,
        lead="What the model loses without each layer and each head.",
        charts=cuts.charts, tables=cuts.tables, columns=2,
    ),
    Section(
        key="slices", title="Slices", term="slice", body=slices.slices_section,
        lead="Whether the state above a token still stands for it.",
        charts=slices.charts, tables=slices.tables, columns=2,
    ),
    Section(
        key="words", title="In words", term="direction", body=story.words_section,
        lead="What the numbers say, by fixed rules.",
    ),
    Section(
        key="trust", title="How sure are we", term="check", body=trust.trust_section,
        lead="What guards these numbers and what they leave out.", tables=trust.tables,
    ),
)  # fmt: skip
