"""Local HTTP and HTTPS servers that programs may or may not be allowed to reach."""

from __future__ import annotations

import contextlib
import ssl
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ENDLESS = "/endless"


class LocalWeb:
    """A running server and the requests it received."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.requests: Counter[str] = Counter()  # by path
        self.headers: dict[str, str] = {}  # of the last request
        self.bodies: list[bytes] = []
        self.hung_up = threading.Event()  # a client closed an endless response


@contextlib.contextmanager
def serving(
    certificate: Path | None = None, address: str = "127.0.0.1", pages: Mapping[str, tuple[str, bytes]] | None = None
) -> Iterator[LocalWeb]:
    """A server on a free port, over TLS if `certificate` (with its key) is given. `pages`: (type, content) by path."""

    class Answer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            web.requests[self.path] += 1
            web.headers = {name.lower(): value for name, value in self.headers.items()}
            if pages is not None:
                kind, content = pages.get(self.path, ("", b""))
                self._respond(200 if kind else 404, content, **{"content-type": kind})
            elif self.path == ENDLESS:
                self._never_end()
            elif self.path.startswith("/to?"):
                self._respond(302, b"", location=self.path.partition("?")[2])
            elif self.path.startswith("/bytes?"):
                self._respond(200, b"x" * int(self.path.partition("?")[2]))
            else:
                self._respond(200, b"hello")

        def do_POST(self) -> None:
            web.bodies.append(self.rfile.read(int(self.headers["content-length"])))
            self._respond(200, b"thanks")

        def _respond(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def _never_end(self) -> None:
            self.send_response(200)
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"x" * 65536)
            except OSError:
                web.hung_up.set()
            self.close_connection = True

        def log_message(self, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # disconnecting clients are part of the test

    server = Server((address, 0), Answer)
    web = LocalWeb(server.server_address[1])
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def make_certificate(path: Path, name: str) -> Path:
    """A self-signed certificate for `name`, with its key, in one file."""
    key = path.with_suffix(".key")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *(
                "-keyout",
                key,
                "-out",
                path,
                "-days",
                "2",
                "-subj",
                f"/CN={name}",
                "-addext",
                f"subjectAltName=DNS:{name}",
            ),
        ],
        check=True,
        capture_output=True,
    )
    path.write_text(path.read_text() + key.read_text())
    return path
