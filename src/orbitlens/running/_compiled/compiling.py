"""Compilation: numba's `njit`, with machine code kept between runs where that is possible.

Enters: a function and numba's options. Leaves: its compiled form. Numba keeps machine code beside
the source, in `NUMBA_CACHE_DIR` or under the home directory, and refuses to compile where none of
them can be written: in containers, and for users without a home. Code is then compiled anew by each
process, which changes nothing but the time that its first use takes.

Numba takes kept code for current as long as the function's own file is unchanged, whatever became
of those that it calls: after an update by git, new tables would meet old loops. So what was kept
before a folder's sources, or those in this one, last changed is dropped, once a process.
"""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numba

HERE = Path(__file__).parent
NO_PLACE = "cannot cache function"  # how numba's refusal begins
_looked_at: set[Path] = set()


def compiled(**options: Any) -> Callable[[Callable[..., Any]], Any]:  # noqa: ANN401 - numba's own
    """Return numba's decorator with these options, and a cache where one can be had."""

    def decorate(function: Callable[..., Any]) -> Any:  # noqa: ANN401
        made = _with_cache(lambda **more: numba.njit(**options, **more)(function))
        if (kept := made.stats.cache_path) is not None:
            drop_stale(Path(function.__code__.co_filename).parent, Path(kept))
        return made

    return decorate


def compiled_c(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Any]:  # noqa: ANN401
    """Return numba's decorator for C functions, which compiles at once; cached where possible."""
    return lambda function: _with_cache(
        lambda **more: numba.cfunc(signature, **options, **more)(function)
    )


def drop_stale(sources: Path, kept: Path) -> None:
    """Remove indices of machine code that are older than the newest source of a folder."""
    if kept in _looked_at:
        return
    _looked_at.add(kept)
    folders = (sources, HERE)  # what all compiled code is made of lies here
    newest = max(file.stat().st_mtime for folder in folders for file in folder.glob("*.py"))
    for index in kept.glob("*.nbi"):
        with suppress(FileNotFoundError):  # another process may have been quicker
            if index.stat().st_mtime < newest:
                index.unlink()


def _with_cache(make: Callable[..., Any]) -> Any:  # noqa: ANN401
    try:
        return make(cache=True)
    except RuntimeError as error:
        if not str(error).startswith(NO_PLACE):
            raise
        return make()
