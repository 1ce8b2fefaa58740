"""How an atlas is made, beyond which models."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class AtlasOptions:
    """What is measured of each model, and up to which size it is run."""

    trace: bool = True  # run models on a text, where they fit
    largest: int = 200_000_000  # parameters up to which a model is run: some 4 GB of memory
    max_tokens: int = 1024  # of the text
    context: int = 64  # tokens of a context
    text: str | None = None  # what is run; None: the passage in the package, or drawn ids
