"""Who does the work: processes of this machine, a Dask cluster, threads of torch and NumPy.

Enters: how many processes, or a scheduler's address. Leaves: an executor. Processes have one thread
each, and end with the one that started them, however that ended.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from multiprocessing import connection, get_context, parent_process
from typing import Any

from threadpoolctl import ThreadpoolController

from orbitlens.errors import InputError, MissingPackageError

SMALL_MODEL = 5_000_000  # parameters up to which a model runs on one thread


def local_workers(n_workers: int | None = None) -> ProcessPoolExecutor:
    """Return processes of this machine, one for each core if not said otherwise."""
    return ProcessPoolExecutor(
        n_workers or os.cpu_count(), mp_context=get_context("spawn"), initializer=_settle_in
    )


@contextmanager
def threads_for(n_parameters: int) -> Iterator[None]:
    """Run a small model on one thread, a large one on all; the threads are put back afterwards.

    Products of a small model take microseconds: several threads wait for each other longer than
    they help, and on a busy machine for a thread that has no core.
    """
    if n_parameters >= SMALL_MODEL:
        yield
        return
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


def _settle_in() -> None:
    import torch

    torch.set_num_threads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Leave when the parent is gone: a parent that was killed could not say so."""
    parent = parent_process()
    assert parent is not None, "this runs in worker processes only"
    connection.wait([parent.sentinel])
    os._exit(1)


@contextmanager
def workers_of(n_workers: int | None, cluster: str | None) -> Iterator[Executor]:
    """Give an executor for as long as it is needed; work that has not begun by then is dropped."""
    if cluster is None:
        pool = local_workers(n_workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
        return
    with cluster_client(cluster) as client:
        executor: Executor = client.get_executor()
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)


def cluster_client(address: str) -> Any:  # noqa: ANN401 - a Client of Dask
    """Return a client of the Dask scheduler at an address.

    Raises:
        MissingPackageError: Dask is not installed.
        InputError: no scheduler answers there.
    """
    try:
        from distributed import Client  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        raise MissingPackageError(
            "the cluster needs dask: pip install 'orbitlens[cluster]'"
        ) from error
    try:
        return Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError(f"--cluster {address!r}: no scheduler answers there ({error}).") from error
