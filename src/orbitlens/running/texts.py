"""Text: streamed from files piece by piece, and the tokens a tokenizer puts around it.

Enters: a file or a tokenizer. Leaves: pieces of text, special tokens, and a short English passage
of the package's own for those who bring none.
"""

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

from orbitlens.errors import InputError

PIECE = 200_000  # characters read at a time
UNKNOWN = 0.02  # share of unknown tokens up to which a tokenizer is said to read a text


def passage() -> Path:
    """Return the file of the package's own short English text."""
    return Path(str(files("orbitlens.running").joinpath("passage.txt")))


def read_text(file: Path) -> Iterator[str]:
    """Yield a text piece by piece, cut at the end of a line.

    Raises:
        InputError: there is no such file, it cannot be read, or it is not UTF-8.
    """
    try:
        with file.open(encoding="utf-8") as stream:
            while piece := stream.read(PIECE):
                yield piece + stream.readline()
    except UnicodeDecodeError as error:
        raise InputError(
            f"{file}: this is not UTF-8 text (byte {error.start} of a piece cannot be read). "
            "Convert it, for example with: iconv -t UTF-8."
        ) from error
    except OSError as error:
        raise InputError(f"{file}: this cannot be read ({error.strerror}).") from error


def special_tokens(tokenizer: Any) -> tuple[list[int], list[int]] | None:  # noqa: ANN401
    """Return the ids a tokenizer puts in front of a text and behind it; None if it changes it."""
    plain = list(tokenizer("a b", add_special_tokens=False)["input_ids"])
    whole = list(tokenizer("a b")["input_ids"])
    for start in range(len(whole) - len(plain) + 1):
        if whole[start : start + len(plain)] == plain:
            return whole[:start], whole[start + len(plain) :]
    return None


def plain_ids(tokenizer: Any, text: str) -> list[int]:  # noqa: ANN401 - any tokenizer
    """Return the ids of a text without the tokenizer's special tokens."""
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def reads_passage(tokenizer: Any) -> bool:  # noqa: ANN401 - any tokenizer
    """Say whether a tokenizer is there and knows (nearly) all of the package's English text."""
    if tokenizer is None:
        return False
    ids = plain_ids(tokenizer, passage().read_text(encoding="utf-8"))
    unknown_id = getattr(tokenizer, "unk_token_id", None)
    unknown = sum(token == unknown_id for token in ids)
    return len(ids) > 0 and unknown <= UNKNOWN * len(ids)
