"""Who does the work: processes of this machine, or a Dask cluster.

Enters: how many processes, or a scheduler's address. Leaves: an executor. Processes have one thread
each, and end with the one that started them, however that ended.
"""

import os
import threading
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import connection, get_context, parent_process
from typing import Any

from orbitlens.errors import InputError, MissingPackageError


def local_workers(n_workers: int | None = None) -> ProcessPoolExecutor:
    """Return processes of this machine, one for each core if not said otherwise."""
    return ProcessPoolExecutor(
        n_workers or os.cpu_count(), mp_context=get_context("spawn"), initializer=_settle_in
    )


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
