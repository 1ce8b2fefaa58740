"""The errors orbitlens raises: each says what was found, what was expected and what to do next.

Anything else that comes out of orbitlens is a bug. The command line turns an `OrbitlensError` into
one message and exit code 2. Messages quote names from files, which hold anything: `printable` is
what every name and token goes through before a terminal, a title or a page shows it.
"""

import unicodedata

# Controls (escape sequences), marks that reorder or hide text, halves of pairs, breaks of lines.
OBEYED = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    r"""Return text with what a terminal or a browser would obey, and not show, escaped.

    >>> print(printable("model\x1b[2J \u202egpj.exe"))
    model\x1b[2J \u202egpj.exe
    """
    if text.isprintable():
        return text
    return "".join(
        ascii(c)[1:-1] if unicodedata.category(c) in OBEYED and c not in "\n\t" else c for c in text
    )


class OrbitlensError(Exception):
    """Base of every error caused by what the user gave, not by a bug."""

    def __str__(self) -> str:
        """Return the message, which may quote names from files, as text that is safe to show."""
        return printable(super().__str__())


class CheckpointError(OrbitlensError):
    """A checkpoint's files are missing, broken, or do not fit together."""


class NotFiniteError(CheckpointError):
    """A weight is NaN, infinite, or too large to be worked with."""


class UnknownFamilyError(CheckpointError):
    """The checkpoint is sound, but no family describes it."""


class InputError(OrbitlensError):
    """An argument is out of range or does not fit the checkpoint it is used on."""


class ResultError(InputError):
    """A saved result is of another kind or a newer format, or damaged."""


class MissingPackageError(OrbitlensError):
    """An optional package is needed for what was asked."""


class TrainingError(OrbitlensError):
    """A training run cannot go on: its loss is not a number, or its folder cannot be written."""


class AuditError(OrbitlensError):
    """A probe of an audit failed, so that its numbers would mean nothing."""
