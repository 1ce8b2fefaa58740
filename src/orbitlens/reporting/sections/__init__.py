"""The sections of a report, in the order of the page: one file each."""

from orbitlens.reporting.sections import agreement, depth, heads, orbits, order, slices, trust
from orbitlens.reporting.sections.overview import overview_section
from orbitlens.reporting.sections.section import Section

SECTIONS = (
    Section(
        key="words", title="In words", term="orbit", body=overview_section,
        lead="What the numbers below say, by fixed rules.",
    ),
    Section(
        key="heads", title="Map of heads", term="index", body=heads.heads_section,
        lead="Value maps aligned with their score maps, and opposed to them. Choose a head.",
        tables=heads.tables, pictures=heads.pictures, columns=1,
    ),
    Section(
        key="depth", title="Through depth", term="controls", body=depth.depth_section,
        lead="What was measured while the model ran, beside its controls.",
        charts=depth.charts, tables=depth.tables,
    ),
    Section(
        key="agreement", title="Predicted · simulated · measured", term="closure",
        body=agreement.agreement_section,
        lead="How well weights and statistics predict what attention does.",
        charts=agreement.charts, tables=agreement.tables, columns=2,
    ),
    Section(
        key="orbits", title="Orbits", term="orbit", body=orbits.orbits_section,
        lead="Where real tokens go. Play it, or drag through depth.",
        charts=orbits.charts, tables=orbits.tables, pictures=orbits.pictures, columns=2,
    ),
    Section(
        key="order", title="Sense of order", term="order", body=order.order_section,
        lead="What the model makes of the order of its tokens, and through what.",
        charts=order.charts, tables=order.tables,
    ),
    Section(
        key="slices", title="Slices", term="slice", body=slices.slices_section,
        lead="Whether the state above a token still stands for it.",
        charts=slices.charts, tables=slices.tables, columns=2,
    ),
    Section(
        key="trust", title="How sure are we", term="check", body=trust.trust_section,
        lead="What guards these numbers and what they leave out.", tables=trust.tables,
    ),
)  # fmt: skip
