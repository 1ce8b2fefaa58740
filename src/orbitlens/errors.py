"""The errors orbitlens raises: each says what was found, what was expected and what to do next.

Anything else that comes out of orbitlens is a bug. The command line turns an `OrbitlensError` into
one message and exit code 2.
"""


class OrbitlensError(Exception):
    """Base of every error caused by what the user gave, not by a bug."""


class CheckpointError(OrbitlensError):
    """A checkpoint's files are missing, broken, or do not fit together."""


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
