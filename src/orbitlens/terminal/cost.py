"""What reading a model cost, in a line."""

from orbitlens.running.info import Cost


def cost_line(cost: Cost) -> str:
    """Return bytes read, of how many, time and memory."""
    total = "" if cost.bytes_total is None else f" of {shown_bytes(cost.bytes_total)}"
    peak = (
        "" if cost.peak_rss_bytes is None else f", peak memory {shown_bytes(cost.peak_rss_bytes)}"
    )
    return f"read {shown_bytes(cost.bytes_read)}{total} in {cost.seconds:.2f} s{peak}"


def shown_bytes(number: int) -> str:
    """Return a number of bytes in the unit a reader would use.

    >>> shown_bytes(14_500_000_000)
    '14.5 GB'
    """
    for size, unit in ((10**9, "GB"), (10**6, "MB"), (10**3, "KB")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number} bytes"
