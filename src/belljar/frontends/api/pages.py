"""Pages for people and monitoring: health, metrics, documentation, and a page to try programs."""

from __future__ import annotations

from pathlib import Path

from starlette.responses import Response

from belljar import __version__
from belljar.frontends.access.refusals import Headers, Refusal, retry_after
from belljar.frontends.api import openapi
from belljar.frontends.api.context import Service
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import Answer
from belljar.telemetry import METRICS_TYPE

_HTML = "text/html; charset=utf-8"
_RETRY_SECONDS = 5.0

#: The pages are self-contained, so nothing else may be loaded. Pictures are data URLs.
_PAGE_HEADERS: Headers = (
    (
        b"content-security-policy",
        b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
        b"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
)

_HOME = (Path(__file__).parent / "home.html").read_bytes()


async def show_health(service: Service, request: Request) -> Response:
    trouble = service.health.trouble
    if trouble:
        raise Refusal(
            503,
            trouble,
            "no program can be run here at the moment; the operator's log has the reason",
            headers=retry_after(_RETRY_SECONDS),
        )
    facts = service.engine.facts()
    body = {"status": "ok", "version": __version__, "running": facts["running"], "queued": facts["queued"]}
    return Answer(body, headers=((b"cache-control", b"no-store"),))


async def show_metrics(service: Service, request: Request) -> Response:
    return Answer(service.telemetry.expose(), media_type=METRICS_TYPE)


async def show_schema(service: Service, request: Request) -> Response:
    return Answer(openapi.SCHEMA_JSON)


async def show_docs(service: Service, request: Request) -> Response:
    return Answer(openapi.DOCS_HTML, media_type=_HTML, headers=_PAGE_HEADERS)


async def show_home(service: Service, request: Request) -> Response:
    """The page for browsers, JSON for other clients."""
    if b"text/html" in request.header_bytes.get(b"accept", b""):
        return Answer(_HOME, media_type=_HTML, headers=_PAGE_HEADERS)
    body = {"name": "belljar", "message": f"Belljar v{__version__}", "version": __version__, "docs": "/docs"}
    return Answer(body, headers=((b"vary", b"accept"),))
