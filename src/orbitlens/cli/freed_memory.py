"""Memory that a command has freed stays with it, to be used again.

A model's run asks for the same tables of some megabytes again and again. glibc hands freed memory
back to the system as soon as a few of them lie together, and the system clears every page that it
gives out anew: 7 % of the processor time of an audit's runs of a model of 135M parameters. Tables
above `HANDED_BACK` still go back when they are freed, so that a large one does not stay.
"""

import ctypes
import os

TRIM, MMAP = -1, -3  # names that mallopt has for its thresholds
HANDED_BACK = 32 * 1024 * 1024  # bytes: the largest threshold that glibc takes
NEVER = 2**31 - 1
SAID_ELSEWHERE = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Have this process keep what it frees; say whether it does.

    For commands, which end soon: a library leaves such settings to its program. What the
    environment says already stays, and systems without glibc are left alone.
    """
    if os.name != "posix" or any(name in os.environ for name in SAID_ELSEWHERE):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and mallopt(MMAP, HANDED_BACK) == 1 == mallopt(TRIM, NEVER)
