"""Sentences of docs/tutorial.md, computed from the page's own numbers."""

import sys
from textwrap import fill
from typing import Any

WIDTH = 116


def _page() -> dict[str, Any]:
    return vars(sys.modules["page_tutorial"])


def maps_beside_measured() -> str:
    """Say what heads with opposed maps were measured to do, and that none is aligned."""
    page = _page()
    kinds, changes = page["maps"]["orientation"], page["heads"]["log_change"]
    opposed = changes[kinds == "opposed"]
    assert len(opposed) and not (kinds == "aligned").any(), "the page has opposed heads alone"
    assert page["gathering"]["raw_log_change"].min() > 0, "the page says that distances grow"
    assert opposed.min() > 0.01, "the page says that all of them spread directions"
    gathering = (changes[kinds == "neutral"] < -0.01).sum()
    assert gathering == len(page["gathering"]), "the page says that gathering heads are neutral"
    return fill(
        f"No. The {len(opposed)} heads with opposed maps all spread directions, and all "
        f"{gathering} that gather them are neutral. Opposed maps would shorten the distances "
        "between isotropic Gaussian tokens; tokens here share a direction, which that reading does "
        "not know. `orbitlens scan MODEL --text FILE` shows both readings side by side.",
        WIDTH,
    )


def answer() -> str:
    """Return the conclusion; what it states is asserted on the numbers above it."""
    page = _page()
    cost = page["loss"](page["gatherers"]) - page["whole"]
    spreaders = page["loss"](page["spreaders"]) - page["whole"]
    controls = page["controls"]
    assert 0 < cost < min(controls), "the page says that these heads cost least"
    assert cost < spreaders
    places = ", ".join(f"{layer}.{head}" for layer, head in page["gatherers"])
    layers = [layer for layer, _ in page["gatherers"]]
    assert set(layers) == {0, 1} and layers.count(0) == 4, "the page says where they are"
    return fill(
        f"**{len(page['gatherers'])} of {len(page['heads'])} heads of `orbit-nano-rotary` gather "
        f"directions on this text ({places}): all of its first layer and one of the second. "
        f"Without them the loss rises by {cost:.2f} nats a token: less than without as many others "
        f"(at least {min(controls):.2f} in {len(controls)} draws), and less than without the "
        f"{len(page['spreaders'])} that spread directions most ({spreaders:.2f}). In this model "
        "the heads that gather directions are not the ones it needs most.**",
        WIDTH,
    )
