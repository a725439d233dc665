"""Fake internet services on loopback over real HTTP: a search engine, web sites, a PDF host and a language model.

Shared by the tests of the tools and of the X-Master dialect.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE = (
    "<html><head><title>Bells</title><style>p {color: red}</style></head><body><h1>About bells</h1>"
    "<p>A bell jar keeps things <b>in</b>.</p><script>alert('no')</script>"
    "<a href='https://example.org/more'>more</a></body></html>"
)


CUT = "half of a bell: \ud83d"  # half of a surrogate pair, as sent by services that truncate text carelessly


def make_pdf(text: str) -> bytes:
    """A valid PDF of one page."""
    stream = f"BT /F1 24 Tf 72 720 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 5 0 R >> >> >>",
        b"<< /Length %d >>\nstream\n%b\nendstream" % (len(stream), stream),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    out = io.BytesIO()
    out.write(b"%PDF-1.4\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(out.tell())
        out.write(b"%d 0 obj\n%b\nendobj\n" % (number, body))
    start = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    out.write(b"".join(b"%010d 00000 n \n" % each for each in offsets))
    out.write(b"trailer\n<< /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, start))
    return out.getvalue()


class Outside:
    """The requests received, and the responses to send."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self.requests: Counter[str] = Counter()  # by path
        self.headers: dict[str, dict[str, str]] = {}  # of the last request, by path
        self.bodies: dict[str, Any] = {}
        self.failing: Counter[str] = Counter()  # how often a path still fails
        self.gate = threading.Event()  # releases waiting requests

    def settings(self) -> dict[str, Any]:
        """Keywords for `WebSettings` that direct all requests here."""
        return {
            "serper_url": f"{self.url}/serper",
            "scrape_url": f"{self.url}/scrape",
            "searxng_url": self.url,
            "serper_api_key": "secret-of-the-host",
            "allowed_hosts": ("127.0.0.1",),
        }


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    outside: Outside

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(None)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self._answer(json.loads(body))

    def _answer(self, body: Any) -> None:
        parts = urlsplit(self.path)
        outside, path = self.outside, parts.path
        outside.requests[path] += 1
        outside.headers[path] = {name.lower(): value for name, value in self.headers.items()}
        outside.bodies[path] = body
        if outside.failing[path] > 0:
            outside.failing[path] -= 1
            self._send(500, b"broken", "text/plain")
            return
        route = getattr(self, "at_" + path.strip("/").replace("/", "_").replace(".", "_"), None)
        if route is None:
            self._send(404, b"nothing here", "text/plain")
        else:
            route(body, parse_qs(parts.query))

    def _send(self, status: int, content: bytes, kind: str, **headers: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(content)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(status, json.dumps(value).encode(), "application/json")

    def at_serper(self, body: Any, _: Any) -> None:
        if self.headers.get("x-api-key") not in ("secret-of-the-host", "of-the-client"):
            self._json({"message": "Unauthorized."}, 403)
            return
        organic = [
            {
                "title": f"{body['q']} {each}",
                "link": f"https://example.org/{each}",
                "snippet": CUT if body["q"] == "cut" else "…",
                "position": each + 1,
            }
            for each in range(body["num"])
        ]
        self._json({"searchParameters": body, "organic": organic, "credits": 1})

    def at_scrape(self, body: Any, _: Any) -> None:
        text = CUT if body["url"].endswith("?cut") else f"scraped {body['url']}"
        self._json({"text": text, "metadata": {}})

    def at_search(self, _: Any, query: Any) -> None:
        first = CUT if query["q"] == ["cut"] else "first"
        results = [{"title": "one", "url": "https://example.org/", "content": first}, {"title": "two", "url": "x"}]
        assert query["format"] == ["json"]
        self._json({"query": query["q"][0], "results": results, "suggestions": ["bells"]})

    def at_page(self, *_: Any) -> None:
        self._send(200, PAGE.encode(), "text/html; charset=utf-8")

    def at_latin(self, *_: Any) -> None:
        self._send(200, "<p>Glöckchen</p>".encode("latin-1"), "text/html; charset=latin-1")

    def at_halved(self, *_: Any) -> None:
        self._send(200, "half of a bell: ?".encode("utf-16-le")[:-2] + b"\x3d\xd8", "text/html; charset=utf-16le")

    def at_labelled(self, _: Any, query: Any) -> None:
        """A page that names a character set, repeated as requested."""
        self._send(200, b"<p>bell-jar</p>" * int(query["times"][0]), f"text/html; charset={query['label'][0]}")

    def at_quadratic(self, *_: Any) -> None:
        """A page that takes the standard library's HTML parser minutes to parse."""
        self._send(200, b"<!--" * 200_000, "text/html")

    def at_misnamed(self, *_: Any) -> None:
        self._send(200, "<p>Glöckchen</p>".encode(), "text/html; charset=undefined")

    def at_packed(self, *_: Any) -> None:
        self._send(200, gzip.compress(PAGE.encode()), "text/html", content_encoding="gzip")

    def at_bomb(self, *_: Any) -> None:
        self._send(200, gzip.compress(b"\0" * 100_000_000, 9), "text/html", content_encoding="gzip")

    def at_endless(self, *_: Any) -> None:
        self.send_response(200)
        self.end_headers()
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"x" * 65536)

    def at_slow(self, *_: Any) -> None:
        self.outside.gate.wait(30)
        self._send(200, b"late", "text/html")

    def at_paper_pdf(self, *_: Any) -> None:
        self._send(200, make_pdf("Bells ring at dawn"), "application/pdf")

    def at_broken_pdf(self, *_: Any) -> None:
        self._send(200, b"%PDF-1.4\n garbage" * 100, "application/pdf")

    def at_redirect(self, _: Any, query: Any) -> None:
        self._send(302, b"", "text/plain", location=query["to"][0])

    def at_loop(self, *_: Any) -> None:
        self._send(302, b"", "text/plain", location="/loop")

    def at_v1_chat_completions(self, body: Any, _: Any) -> None:
        self.at_llm_chat_completions(body, _)

    def at_llm_chat_completions(self, body: Any, _: Any) -> None:
        if self.headers.get("authorization") != "Bearer secret-model-key":
            self._json({"error": "no key"}, 401)
            return
        said = body["messages"][-1]["content"]
        if body["model"] == "broken":
            self._json({"error": "always"}, 500)
        elif "JSON object" in said:
            answer = {"content": f"summary by {body['model']}: {'bell jar' in said}", "urls": ["u"], "score": 0.9}
            self._complete("```json\n" + json.dumps(answer) + "\n```")
        elif said == "cut":
            self._complete(CUT)
        else:
            self._complete(f"{body['model']} heard: {said[:2000]}")

    def _complete(self, text: str) -> None:
        self._json({"choices": [{"message": {"role": "assistant", "content": text}}]})


@contextlib.contextmanager
def outside_world() -> Iterator[Outside]:
    """Serve all services on one port."""
    answers = type("Answers", (_Answers,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), answers)
    server.daemon_threads = True
    answers.outside = outside = Outside(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield outside
    finally:
        outside.gate.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


if __name__ == "__main__":
    with outside_world() as world:
        print(world.url, flush=True)
        while True:
            time.sleep(60)
