"""How many threads work runs on: decided here by its size, and put back afterwards.

Enters: the size of a piece of work. Leaves: threads of torch, of NumPy and of compiled loops.
Products of small pieces take microseconds. Sharing one out, threads wait for each other longer than
they help, and on a busy machine for one that has no core (measured: ten times slower). So small
pieces run on one thread each, several of them side by side where there are several, and large ones
on all threads, which is as many as torch was given.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TypeVar

from threadpoolctl import ThreadpoolController

SMALL_MODEL = 5_000_000  # parameters up to which a model runs on one thread
NARROW_LAYER = 768  # width up to which one thread reads a layer, or works on its tokens
SMALL_PART = 50_000  # pairs of tokens up to which compiled attention runs on one thread
MOST_LAYERS = 2  # side by side: their memory is still small beside torch itself

Item = TypeVar("Item")
Made = TypeVar("Made")


@contextmanager
def threads_for(n_parameters: int) -> Iterator[None]:
    """Run a small model on one thread, a large one on all."""
    with one_thread() if n_parameters < SMALL_MODEL else nullcontext():
        yield


@contextmanager
def threads_for_layers(width: int) -> Iterator[None]:
    """Work on what narrow layers did to tokens on one thread, on wide ones on all."""
    with one_thread() if width <= NARROW_LAYER else nullcontext():
        yield


@contextmanager
def threads_for_pairs(n_pairs: int) -> Iterator[None]:
    """Run a flow of few pairs of tokens on one thread, one of many on all.

    Sums over a step's stages, which NumPy does, are never enough to wake others for.
    """
    import torch

    if n_parts(n_pairs, torch.get_num_threads()) == 1:
        with one_thread():
            yield
        return
    with numpy_threads(1):
        yield


def each_layer(
    function: Callable[[Item], Made], places: Sequence[Item], *, width: int
) -> Iterator[Made]:
    """Yield what a function makes of each layer, in order; narrow layers run side by side."""
    import torch

    n_threads = min(torch.get_num_threads(), MOST_LAYERS)
    if width > NARROW_LAYER or n_threads == 1:
        yield from map(function, places)
        return
    with one_thread(), ThreadPoolExecutor(n_threads) as pool:
        yield from pool.map(function, places)


def n_parts(n_pairs: int, n_threads: int, *, uneven: bool = False) -> int:
    """Return into how many parts the pairs of compiled attention are cut; more if they differ."""
    worth = n_pairs // SMALL_PART
    return min(worth, n_threads * (4 if uneven else 1)) if n_threads > 1 and worth > 1 else 1


def do_parts(run: Callable[[int, int], None], parts: list[tuple[int, int]], n_threads: int) -> None:
    """Do `run(begin, end)`, compiled and without Python's lock, for all parts in threads.

    The thread that asks is one of them.
    """
    waiting = iter(parts)
    n_others = min(n_threads, len(parts)) - 1
    others = [_pool(n_threads).submit(_work, run, waiting) for _ in range(n_others)]
    _work(run, waiting)
    for other in others:
        other.result()


def _work(run: Callable[[int, int], None], waiting: Iterator[tuple[int, int]]) -> None:
    for begin, end in waiting:  # a list's next item is taken by one thread only
        run(begin, end)


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, thread_name_prefix="orbitlens-parts")


if hasattr(os, "register_at_fork"):  # threads do not survive a fork; not every system has it
    os.register_at_fork(after_in_child=_pool.cache_clear)


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch and NumPy to one thread for a while."""
    with torch_threads(1), numpy_threads(1):
        yield


@contextmanager
def torch_threads(n_threads: int) -> Iterator[None]:
    """Keep torch to that many threads for a while."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def numpy_threads(n_threads: int) -> Iterator[None]:
    """Keep NumPy's matrix products to that many threads for a while.

    Theirs spin on after a product, on the cores that other threads are to run on.
    """
    with _thread_pools().limit(limits=n_threads, user_api="blas"):
        yield


@cache
def _thread_pools() -> ThreadpoolController:
    return ThreadpoolController()  # looking for them takes milliseconds
