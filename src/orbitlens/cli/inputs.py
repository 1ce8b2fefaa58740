"""Options by which commands take inputs, and what they mean for the library."""

from pathlib import Path
from typing import Annotated, Any

import typer

from orbitlens.cli.output import is_number
from orbitlens.errors import InputError

TextOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="UTF-8 text of any size; lines of ids where there is no tokenizer."
    ),
]
ImagesOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Images: .npy, or MNIST's own format (.gz).")
]
TokensOption = Annotated[
    str | None,
    typer.Option(metavar="IDS", help="Token ids: 5,17,3 or a file, one context a line."),
]
NormaliseOption = Annotated[
    str, typer.Option(metavar="MEAN,STD", help="Of grey levels divided by 255.")
]
PickleOption = Annotated[
    bool, typer.Option("--allow-pickle", help="Read .bin files, as plain tensors.")
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A model's folder, a .gguf file, or a name; of the hub (owner/model@revision), only "
        "what is needed is fetched.",
    ),
]
LayersOption = Annotated[str | None, typer.Option(metavar="0-3,7", help="Only these layers.")]


def chosen_inputs(*, text: Path | None, images: Path | None, tokens: str | None) -> Any:  # noqa: ANN401
    """Return the one input that was given, as the library takes it; None if there is none.

    Raises:
        InputError: several were given, or a file is not there.
    """
    given = {"--text": text, "--images": images, "--tokens": tokens}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InputError(f"{' and '.join(named)}: give one of them.")
    for name, file in (("--text", text), ("--images", images)):
        if file is not None and not file.is_file():
            raise InputError(f"{name} {file}: there is no such file.")
    if images is not None:
        from orbitlens.running.images import ImageFile

        return ImageFile(images)
    return text if tokens is None else token_ids(tokens)


def layer_numbers(text: str | None) -> list[int] | None:
    """Read "0-3,7" as layers 0, 1, 2, 3 and 7.

    Raises:
        InputError: it is something else.
    """
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not is_number(first) or (dash and not is_number(last)):
            raise InputError(f"--layers {text!r}: expected numbers and ranges, such as 0-3,7.")
        upper = int(last) if dash else int(first)
        if upper < int(first):
            raise InputError(f"--layers {text!r}: {part.strip()!r} is not a range of layers.")
        numbers += range(int(first), upper + 1)
    return numbers


def token_ids(text: str) -> tuple[tuple[int, ...], ...]:
    """Return the contexts that --tokens names: ids, or a file of them."""
    from orbitlens.running.inputs import parse_ids
    from orbitlens.running.texts import read_text

    file = Path(text)
    try:
        is_file = file.is_file()
    except OSError:  # a list of ids can be longer than a name may be
        is_file = False
    return parse_ids("".join(read_text(file)) if is_file else text, where=f"--tokens {text[:60]}")


def mean_std(text: str) -> tuple[float, float]:
    """Read what `NormaliseOption` takes.

    Raises:
        InputError: not two numbers, or the second is not positive.
    """
    try:
        mean, std = (float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(
            f"--normalise {text!r}: expected two numbers, such as 0.1307,0.3081."
        ) from error
    if not std > 0:
        raise InputError(f"--normalise {text!r}: the second number must be positive.")
    return mean, std
