"""The routes of the native API (version 1) except batches and sessions. Their names and shapes are fixed."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response

from belljar import __version__
from belljar.engine.outcomes import new_id
from belljar.environments import Environments
from belljar.frontends.access.callers import Caller
from belljar.frontends.api.bodies import admit_body, read_execute
from belljar.frontends.api.context import Service
from belljar.frontends.api.request import Request, decode
from belljar.frontends.api.responses import Answer
from belljar.frontends.api.streaming import stream_execution
from belljar.frontends.languages import describe_languages
from belljar.settings import Settings


async def execute(service: Service, request: Request) -> Response | None:
    caller = request.caller
    caller.count_request()
    execution = await decode(await request.json_body(), read_execute, lambda body: admit_body(caller, body))
    with caller.running_up_to(1):
        kind = request.wanted_stream()
        if kind is not None:
            await stream_execution(service, request, execution, kind)
            return None
        execution_id = new_id()
        request.on_hang_up(lambda: service.engine.cancel(execution_id))
        outcome = await service.engine.run(execution, id=execution_id)
        return await request.answer_outcome(outcome)


async def list_languages(service: Service, request: Request) -> Response:
    languages = await describe_languages(service.settings, service.environments)
    return Answer({"languages": languages})


async def list_environments(service: Service, request: Request) -> Response:
    """Environments that are configured but not built yet have no packages and are not warm."""
    if service.settings.backend == "container":
        described = _describe_images(service.settings)
    else:
        environments = service.environments
        described = await asyncio.to_thread(lambda: [_describe(environments, name) for name in environments.known()])
    return Answer({"environments": described})


async def show_info(service: Service, request: Request) -> Response:
    isolation = await service.isolation.describe()
    settings = request.caller.settings
    body = {
        "version": __version__,
        "backend": service.engine.facts()["backend"],
        "isolation": {**isolation, "network": _describe_network(request.caller)},
        "limits": {
            "default": settings.default_limits.as_json(),
            "ceiling": settings.ceiling_limits.as_json(),
        },
    }
    return Answer(body)


def _describe_network(caller: Caller) -> dict[str, str]:
    """Whether this caller's programs are kept from the internet, described like an isolation layer."""
    network = caller.settings.network
    if not (network.offered and caller.grants.network):
        return {"state": "on", "detail": "no program has a network"}
    ports = ", ".join(network.ports)
    return {"state": "off", "detail": f"programs that ask for it reach the internet through a proxy, at ports {ports}"}


def _describe_images(settings: Settings) -> list[dict[str, Any]]:
    """The names of images that a request may use; their content is unknown to the server."""
    names = {"default", *(each.partition("=")[0] for each in settings.container.images)}
    return [{"name": name, "python": "", "packages": [], "warm": True} for name in sorted(names)]


def _describe(environments: Environments, name: str) -> dict[str, Any]:
    environment = environments.find(name)
    if environment is None:
        return {"name": name, "python": "", "packages": [], "warm": False}
    packages = [{"name": package, "version": version} for package, version in environment.packages]
    is_warm = bool(environment.warm_imports)
    return {"name": name, "python": environment.version, "packages": packages, "warm": is_warm}
