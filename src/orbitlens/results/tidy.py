"""Rows to a data frame. pandas takes a second to import, so nothing else does it before."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas


def data_frame(rows: Iterable[Mapping[str, object]]) -> "pandas.DataFrame":
    """Return one row for each mapping, with the columns that any of them has, in that order.

    >>> data_frame([{"layer": 0, "index": 0.5}, {"layer": 1, "index": None}])["index"].tolist()
    [0.5, nan]
    """
    import pandas

    listed = list(rows)
    columns = list(dict.fromkeys(name for row in listed for name in row))
    frame = pandas.DataFrame.from_records(
        [[row.get(name) for name in columns] for row in listed], columns=columns
    )
    # A column without a single value would be of type object; numbers are what is missing.
    for name in columns:
        if frame[name].isna().all():
            frame[name] = frame[name].astype(float)
    return frame
