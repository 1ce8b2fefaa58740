"""The answer of docs/tutorial.md, computed from the page's own numbers."""

import sys


def answer() -> str:
    """Return the conclusion; what it states is asserted on the numbers above it."""
    page = vars(sys.modules["page_tutorial"])
    cost = page["loss"](page["gatherers"]) - page["whole"]
    neighbours = page["loss"](page["neighbours"]) - page["whole"]
    controls = page["controls"]
    assert cost > max(controls), "the page says that gathering heads cost most"
    assert cost > neighbours
    pulls = page["effects"]["pull"][page["heads"]["tendency"] == "gathers"]
    assert pulls.max() < 0, "the page says that all gathering heads pull inwards"
    assert page["by_tendency"].min().min() > 0, "the page says that no head shrinks distances"
    places = ", ".join(f"{layer}.{head}" for layer, head in page["gatherers"])
    return (
        f"**By their weights, {len(page['gatherers'])} of 16 heads of `orbit-nano-rotary` gather "
        f"tokens ({places}), all in its last two\nlayers; on text they pull tokens together, by "
        "less than the differences that they add. Without them the loss\nrises by "
        f"{cost:.2f} nats a token: more than without as many others (at most {max(controls):.2f} "
        f"in 20 draws), or without the\nother heads of the same layers ({neighbours:.2f}).**"
    )
