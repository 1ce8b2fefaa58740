"""The explorer's server: one page and the questions that it asks, for this machine alone.

Enters: a model. Leaves: an address with a secret token. The standard library's server does: there
are two routes, answers are streamed lines, and every dependency less is one that cannot break or
leak. What it lacks for the open internet it does not need, as it listens on 127.0.0.1 alone.

Every request must bring the token, and name this server as its host (a page of another site whose
name was pointed at 127.0.0.1 does not); no header lets another origin read an answer; bodies are
bounded. The page's policy names its script and style by their hashes.
"""

import hmac
import json
import queue
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import SplitResult, parse_qs, urlsplit

from orbitlens.errors import InputError, OrbitlensError
from orbitlens.exploring.answers import (
    ASKS_FIRST,
    Pace,
    PageQuestion,
    answer,
    cost_words,
    measured_pace,
    question_of,
    work_of,
)
from orbitlens.exploring.connections import BoundedHttp
from orbitlens.exploring.freezing import FREEZE, freeze, freezing_work
from orbitlens.exploring.jobs import Job, JobEvent, Told, Worker
from orbitlens.exploring.passes import Explored
from orbitlens.results.codec import encode

HOST = "127.0.0.1"
MOST_BYTES = 4_000_000  # of a request's body: the levels of an image, or a long text
BEAT = 0.25  # seconds between looks at whether the page is still there
PATIENCE = 30.0  # seconds that a request may take to arrive, all of it
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": "frame-ancestors 'none'",
}


class ExplorerServer:
    """Serves one model; `close` frees it."""

    def __init__(self, explored: Explored, page: str | Callable[[], str], *, port: int = 0) -> None:
        """Listen on a port of this machine; 0 takes a free one.

        Args:
            explored: the model; its module is built when the first question is answered.
            page: the HTML, or what makes it when it is first asked for.
            port: to listen on.

        Raises:
            InputError: the port is taken.
        """
        self.explored: Explored | None = explored
        self.page, self.token = page, secrets.token_urlsafe(24)
        self.worker = Worker()
        self.pace: Pace | None = None  # measured before the first answer
        handler = partial(_Handler, self)
        try:
            self.http = BoundedHttp((HOST, port), handler)
        except OSError as error:
            raise InputError(
                f"port {port} of this machine cannot be used ({error.strerror}). Leave it out for "
                "a free one."
            ) from error
        self.port = int(self.http.server_address[1])
        self.thread: threading.Thread | None = None

    @property
    def address(self) -> str:
        """Where the page is, token included."""
        return f"http://{HOST}:{self.port}/?token={self.token}"

    def start(self) -> "ExplorerServer":
        """Serve in a thread of its own."""
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.1,), daemon=True)
        self.thread.start()
        return self

    def serve(self) -> None:
        """Serve until Ctrl-C."""
        self.http.serve_forever(0.1)

    def close(self) -> None:
        """Stop, and let go of the model: its memory is free when nobody else holds it."""
        if self.thread is not None:
            self.http.shutdown()
        self.http.server_close()
        self.worker.close()
        if self.explored is not None:
            self.explored.forget()
        self.explored, self.page = None, ""

    def html(self) -> str:
        """Return the page, made once."""
        if callable(self.page):
            self.page = self.page()
        return self.page

    def job(self, name: str, asked: PageQuestion) -> Job:
        """Return a question as a job for the worker."""
        work = partial(self._answer, name, asked)
        return Job(work=work, what=WHAT[name], quick=name in QUICK)

    def _answer(self, name: str, asked: PageQuestion, told: Told) -> Any:  # noqa: ANN401 - JSON
        explored = self.explored
        assert explored is not None, "no job runs once the server is closed"
        if self.pace is None:
            told(0, None)
            self.pace = measured_pace(explored)
        freezes = name == FREEZE
        work = freezing_work(explored, asked) if freezes else work_of(explored, name, asked)
        seconds = self.pace.seconds(work)
        if seconds > ASKS_FIRST and not asked.agreed:
            return {"cost": {"seconds": round(seconds, 1), "words": cost_words(seconds)}}
        return (
            encode(freeze(explored, asked, told))
            if freezes
            else answer(explored, name, asked, told)
        )


QUICK = {"model", "attention", "order", "flow"}  # one pass or two, which a person waits for
WHAT = {
    "model": "running the sentence",
    "attention": "reading attention",
    "heads": "reading every head on another text",
    "order": "running the order",
    "usual": "running random orders",
    "swaps": "swapping tokens",
    "flow": "reading the layer",
    FREEZE: "freezing this page",
}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "orbitlens", ""
    timeout = PATIENCE

    def __init__(self, explorer: ExplorerServer, *args: Any, **named: Any) -> None:  # noqa: ANN401
        self.explorer = explorer
        super().__init__(*args, **named)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the address would be in it, and with it the token."""

    def handle_one_request(self) -> None:
        """Serve a request that arrives in time."""
        self.explorer.http.arriving[self.connection] = time.monotonic() + PATIENCE
        try:
            super().handle_one_request()
        finally:
            self._arrived()

    def _arrived(self) -> None:
        self.explorer.http.arriving.pop(self.connection, None)

    def _address(self) -> SplitResult:
        try:
            return urlsplit(self.path)
        except ValueError:  # no address at all: nothing is there
            return SplitResult("", "", "", "", "")

    # --- who may ask ---

    def _refusal(self, token: str) -> tuple[HTTPStatus, str] | None:
        own = {f"{name}:{self.explorer.port}" for name in (HOST, "localhost")}
        if self.headers.get("Host") not in own:
            return HTTPStatus.MISDIRECTED_REQUEST, "this server answers for 127.0.0.1 alone."
        origin = self.headers.get("Origin")
        if origin is not None and origin not in {f"http://{name}" for name in own}:
            return HTTPStatus.FORBIDDEN, "pages of other sites may not ask."
        if not hmac.compare_digest(token.encode(), self.explorer.token.encode()):
            return HTTPStatus.FORBIDDEN, "the token is missing or wrong: open the whole address."
        return None

    # --- routes ---

    def do_GET(self) -> None:
        """Send the page."""
        self._arrived()
        parts = self._address()
        refused = self._refusal(parse_qs(parts.query).get("token", [""])[0])
        if refused is not None:
            self._plain(*refused)
        elif parts.path != "/":
            self._plain(HTTPStatus.NOT_FOUND, "there is nothing here; the page is at /.")
        else:
            self._send(HTTPStatus.OK, self.explorer.html().encode("utf-8"), "text/html")

    def do_POST(self) -> None:
        """Answer a question, line by line."""
        refused = self._refusal(self.headers.get("X-Token", "")) or self._wrong_body()
        if refused is not None:
            self.close_connection = True  # the body, if any, is left unread
            self._plain(*refused)
            return
        name = self._address().path.removeprefix("/api/")
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self._arrived()
        if name not in WHAT:
            self._plain(HTTPStatus.NOT_FOUND, "there is no such question.")
            return
        try:
            asked = question_of(json.loads(body))
        except (ValueError, RecursionError):
            self._plain(HTTPStatus.BAD_REQUEST, "a question is a JSON object.")
        except OrbitlensError as error:
            self._plain(HTTPStatus.BAD_REQUEST, str(error))
        else:
            self._stream(self.explorer.job(name, asked))

    def _wrong_body(self) -> tuple[HTTPStatus, str] | None:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or "Transfer-Encoding" in self.headers:
            return HTTPStatus.LENGTH_REQUIRED, "a question says how long it is."
        if len(length) > 12 or int(length) > MOST_BYTES:
            return (
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                f"the question is longer than {MOST_BYTES:,} bytes. Send less.",
            )
        if self.headers.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a question is application/json."
        return None

    # --- answers ---

    def _plain(self, status: HTTPStatus, words: str) -> None:
        self._send(status, json.dumps({"error": words}).encode("utf-8"), "application/json")

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        for key, value in HEADERS.items():
            self.send_header(key, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _stream(self, job: Job) -> None:
        if self.explorer.worker.closed.is_set():  # a connection may outlive the server's door
            self._plain(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "the connection was lost: the server was stopped. Start `orbitlens explore` again.",
            )
            return
        if not self.explorer.worker.ask(job):
            self._plain(HTTPStatus.SERVICE_UNAVAILABLE, "too many questions wait. Ask again soon.")
            return
        self.send_response(HTTPStatus.OK)
        for key, value in HEADERS.items():
            self.send_header(key, value)
        self.send_header("Content-Type", "application/x-ndjson; charset=utf-8")
        self.send_header("Connection", "close")  # the end of the answer is that of the connection
        self.end_headers()
        self.close_connection = True
        try:
            self._pass_on(job)
        except OSError:  # the page has gone
            job.cancelled.set()

    def _pass_on(self, job: Job) -> None:
        event = JobEvent(what="waiting for another question")  # until it has begun
        while True:
            try:
                event = job.events.get(timeout=BEAT)
            except queue.Empty:
                if self._gone():
                    job.cancelled.set()
                    return
                self.wfile.write(_line(event))
                continue
            while not event.last and not job.events.empty():
                event = job.events.get()  # of progress only the newest is news
            self.wfile.write(_line(event))
            self.wfile.flush()
            if event.last:
                return

    def _gone(self) -> bool:
        """Say whether the page has closed the connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""


def _line(event: JobEvent) -> bytes:
    if not event.last:
        data: dict[str, Any] = {"progress": event.progress, "what": event.what}
    elif event.error is not None:
        data = {"error": event.error}
    else:
        data = {"result": event.answer}
    try:
        text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:  # the page must not wait for an answer that cannot be written
        return _line(JobEvent(error="a number of the answer is not finite. Report it.", last=True))
    return text.encode("utf-8") + b"\n"
