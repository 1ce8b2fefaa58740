"""Pages say "gathers" and "spreads" of directions or distances, and never leave out of what."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WORD = re.compile(r"\b(?:gather|spread)\w*", re.IGNORECASE)
OF_WHAT = re.compile(r"\b(?:directions?|distances?)\b", re.IGNORECASE)
CODE = re.compile(r"^```python\n.*?^```$|`[^`\n]+`|\]\([^)]*\)", re.MULTILINE | re.DOTALL)
# The same words in another sense: statistics, places, and names of other things.
OTHER_SENSES = re.compile(
    r"spread over|the spread (?:over|of)|Spread of tokens before|visible spread|"
    r"spreads (?:it )?over|share of the spread|spreadsheet",
    re.IGNORECASE,
)


def unsaid(page):
    """Return the sentences in which tokens gather or spread, and nothing says of what."""
    found = []
    for paragraph in re.split(r"\n\s*\n|\n(?=[|#>:-] ?)", CODE.sub(" ", page)):
        sentences = re.split(r"(?<=[.!?])\s+", " ".join(paragraph.split()))
        for before, sentence in zip(["", *sentences], sentences, strict=False):
            left = OTHER_SENSES.sub("", sentence)
            if WORD.search(left) and not OF_WHAT.search(f"{before} {left}"):
                found.append(sentence)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_says_of_what_tokens_gather_or_spread(page):
    assert unsaid(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "sentence",
    [
        "60 of 72 heads gather, 4 spread, 8 neither.",
        "A head spreads tokens when its value map is aligned with its score map.",
        "| heads | which gather tokens |",
        "Directions are defined here.\n\nThis head gathers tokens.",
    ],
)
def test_sentences_that_do_not_say_of_what_are_caught(sentence):
    assert unsaid(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "Attention gathers directions in layer 0.",
        "Negative: it gathers directions. Positive: it spreads them.",
        "No effect exceeds the spread over seeds.",
        "`gather_report` is a function.",
    ],
)
def test_sentences_that_say_it_pass(sentence):
    assert unsaid(sentence) == []
