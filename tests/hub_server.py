"""A hub on this machine: it serves folders by range, and misbehaves when told to.

Faults are a list of names; each request for a file takes the next one, None being none.
"""

import json
import re
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"
STALL = 1.5  # seconds
REFUSALS = {"busy": 503, "gone": 404, "login": 401}


@dataclass
class HubServer:
    """What the server holds, what it does wrong next, and what it was asked."""

    models: dict[str, Path]
    faults: list[str | None] = field(default_factory=list)
    always: str | None = None  # a fault of every request
    requests: list[tuple[str, str | None]] = field(default_factory=list)  # file, range
    sent: int = 0  # bytes of files
    url: str = ""

    def files(self, repo):
        return sorted(p.name for p in self.models[repo].iterdir() if p.is_file())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *arguments):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        listed = re.fullmatch(r"/api/models/(\w+/[\w-]+)(/revision/[\w./-]+)?", path)
        wanted = re.fullmatch(r"/(\w+/[\w-]+)/resolve/(\w+)/([\w./-]+)", path)
        if listed and listed[1] in self.hub.models:
            siblings = [{"rfilename": name} for name in self.hub.files(listed[1])]
            self.plain(200, json.dumps({"id": listed[1], "sha": COMMIT, "siblings": siblings}))
        elif wanted and wanted[1] in self.hub.models and wanted[2] == COMMIT:
            self.file(self.hub.models[wanted[1]] / wanted[3])
        else:
            self.plain(404, "{}")

    def plain(self, status, text):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def file(self, path):
        hub = self.hub
        fault = hub.faults.pop(0) if hub.faults else hub.always
        asked = self.headers.get("Range")
        hub.requests.append((path.name, asked))
        if fault in REFUSALS:
            self.plain(REFUSALS[fault], "{}")
        elif fault == "closed":
            self.close_connection = True
        elif asked is None or fault == "whole":
            self.body(200, path.read_bytes(), {"ETag": '"one"'})
        else:
            time.sleep(STALL if fault == "stall" else 0)
            self.range(path.read_bytes(), asked, fault)

    def range(self, data, asked, fault):
        first, last = (int(part) for part in re.fullmatch(r"bytes=(\d+)-(\d+)", asked).groups())
        last, total = min(last, len(data) - 1), len(data)
        if first >= total:
            self.body(416, b"", {"Content-Range": f"bytes */{total}"})
            return
        if fault == "less":
            last = first + (last - first) // 2
        said = {
            "grown": f"bytes {first}-{last}/{total + 1}",
            "elsewhere": f"bytes {first + 1}-{last}/{total}",
            "absurd": f"bytes {first}-{last}/{10**30}",
            "unsaid": "",
        }.get(fault, f"bytes {first}-{last}/{total}")
        head = {"Content-Range": said, "ETag": '"two"' if fault == "etag" else '"one"'}
        if fault == "zipped":
            head["Content-Encoding"] = "gzip"
        piece = data[first : last + 1] + (bytes(100) if fault == "more" else b"")
        self.body(206, piece, head, cut=fault == "cut", drips=fault == "drip")

    def body(self, status, data, head, *, cut=False, drips=False):
        self.send_response(status)
        for name, value in head.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if cut:
            data = data[: (len(data) + 1) // 2]
            self.close_connection = True
        self.hub.sent += len(data)
        try:
            for place in range(100 if drips else 0):
                self.wfile.write(data[place : place + 1])
                time.sleep(0.02)
            self.wfile.write(data[100 if drips else 0 :])
        except OSError:  # the reader has had enough
            self.close_connection = True


@contextmanager
def serving(models):
    """Serve folders by repository name on 127.0.0.1 for a while."""
    hub = HubServer(models)
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Own", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
