"""Connections to the explorer's server: a bounded number, none of them for ever.

Enters: connections of this machine, from anybody. Leaves: a thread for each. Whoever sends half a
request, or a byte now and then, has a place until another needs it, or until its time is up.
"""

import contextlib
import socket
import threading
import time
from http.server import ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 64  # at once: a page holds a few
MAKES_ROOM = 0.25  # seconds until one that was ended has gone


class BoundedHttp(ThreadingHTTPServer):
    """A thread a connection, so many at once; `arriving`: until when a request must be there."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, *args: Any) -> None:  # noqa: ANN401
        """Listen, as `ThreadingHTTPServer` does."""
        self.places = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self.arriving: dict[socket.socket, float] = {}  # by a handler; in `time.monotonic`
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Give a connection a thread; where all are taken, that of one who asks nothing."""
        if not self.places.acquire(blocking=False):
            self._end(min(list(self.arriving.items()), key=lambda one: one[1], default=None))
            if not self.places.acquire(timeout=MAKES_ROOM):
                self.shutdown_request(request)
                return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Serve a connection, and give its place back."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.places.release()

    def service_actions(self) -> None:
        """End what arrives too slowly, byte by byte: it would hold its place for ever."""
        now = time.monotonic()
        for one in list(self.arriving.items()):
            if now > one[1]:
                self._end(one)

    def _end(self, one: tuple[socket.socket, float] | None) -> None:
        if one is not None and self.arriving.pop(one[0], None) is not None:
            with contextlib.suppress(OSError):  # it has gone by itself
                one[0].shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Say nothing: pages that go away in the middle are no news."""
