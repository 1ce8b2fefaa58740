"""Readings that fit their header: what a record of unknown origin must hold before it is shown.

Enters: a header and readings as they were read. Leaves: nothing, or a `ResultError` that names what
does not fit.
"""

from collections.abc import Iterable, Sequence

from orbitlens.errors import ResultError
from orbitlens.watching.watch_reading import ByHead, TokenReading, WatchHeader, WatchReading

MOST_LAYERS, MOST_HEADS = 1024, 32_768  # those of a checkpoint
LARGEST_STEP = 2**53  # beyond it pictures cannot tell steps apart
SHOWN = {"heads": ("freezing", "entropy_floor"), "growth": ("freezing",)}
BY_HEAD = ("sharpness", "largest_score", "written")
BY_LAYER = ("massive", "massive_position", "attention_update", "block_update")
BETWEEN = ("cosine", "log_spread", "effective_rank")  # in front of each layer and behind the last


def check_readings(header: WatchHeader, readings: Iterable[WatchReading]) -> None:
    """Refuse readings whose rows are not those of the header's layers and heads.

    Raises:
        ResultError: with the step and the quantity.
    """
    sizes = [layer.n_heads for layer in header.layers]
    if not 1 <= len(sizes) <= MOST_LAYERS or not all(1 <= n <= MOST_HEADS for n in sizes):
        raise ResultError(
            f"{len(sizes)} layers of {min(sizes, default=0)} to {max(sizes, default=0)} heads; "
            f"expected 1 to {MOST_LAYERS} layers of 1 to {MOST_HEADS} heads."
        )
    for reading in readings:
        if abs(reading.step) > LARGEST_STEP:
            raise ResultError("a step beyond 2^53; expected a step of a training.")
        for group, names in SHOWN.items():
            given = getattr(reading, group)
            _check_names(reading, group, [name for name in names if name not in given])
            for name, rows in given.items():
                _check_rows(reading, f"{group}.{name}", rows, sizes)
        if reading.tokens is not None:
            _check_tokens(reading, reading.tokens, sizes)
        _check_places(reading, sizes)


def _check_names(reading: WatchReading, group: str, missing: Sequence[str]) -> None:
    if missing:
        raise ResultError(f"step {reading.step}: {group} lacks {', '.join(missing)}.")


def _check_rows(reading: WatchReading, name: str, rows: ByHead, sizes: Sequence[int]) -> None:
    if [len(row) for row in rows] != list(sizes):
        raise ResultError(
            f"step {reading.step}: {name[:40]!r} has {len(rows)} rows that are not the "
            f"{len(sizes)} layers of the header, or other numbers of heads."
        )


def _check_tokens(reading: WatchReading, tokens: TokenReading, sizes: Sequence[int]) -> None:
    for name in BY_HEAD:
        _check_rows(reading, f"tokens.{name}", getattr(tokens, name), sizes)
    for names, n in ((BY_LAYER, len(sizes)), (BETWEEN, len(sizes) + 1)):
        for name in names:
            if len(getattr(tokens, name)) != n:
                raise ResultError(f"step {reading.step}: tokens.{name} has not {n} numbers.")


def _check_places(reading: WatchReading, sizes: Sequence[int]) -> None:
    named = [(alarm.layer, alarm.head) for alarm in reading.alarms]
    for layer, head in [*named, *((one.layer, one.head) for one in reading.expected)]:
        is_there = 0 <= layer < len(sizes)
        if not is_there or (head is not None and not 0 <= head < sizes[layer]):
            raise ResultError(f"step {reading.step}: an alarm names a head that is not there.")
    for layer in (*reading.broken, *reading.overflowed):
        if not 0 <= layer < len(sizes):
            raise ResultError(f"step {reading.step}: a layer is named that is not there.")
