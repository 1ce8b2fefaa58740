"""What every command that runs a model needs to know of texts.

Enters: a tokenizer. Leaves: the tokens it puts around a text, and a short text of the package's own
for those who bring none.
"""

from importlib.resources import files
from pathlib import Path
from typing import Any


def passage() -> Path:
    """Return the file of the package's own short English text."""
    return Path(str(files("orbitlens.running").joinpath("passage.txt")))


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]] | None:  # noqa: ANN401
    """Return the ids a tokenizer puts in front of a text and behind it; None if it changes it."""
    plain = list(tokenizer("a b", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a b")["input_ids"])
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return None
