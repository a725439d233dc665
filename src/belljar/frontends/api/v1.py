"""The routes of the native API, version 1; their names and shapes are fixed."""

from __future__ import annotations

import asyncio
from typing import Any

from belljar import __version__
from belljar.engine.outcomes import new_id
from belljar.environments import Environments
from belljar.frontends.api.bodies import admit_body, read_execute
from belljar.frontends.api.context import Service
from belljar.frontends.api.isolation import describe_network
from belljar.frontends.api.large_answers import reply_outcome
from belljar.frontends.api.large_bodies import decode
from belljar.frontends.api.request import Request
from belljar.frontends.api.responses import encode_json, reply
from belljar.frontends.api.streaming import stream_execution, wanted_stream
from belljar.settings import Settings


async def execute(service: Service, request: Request) -> None:
    """POST /v1/execute."""
    caller = request.caller
    caller.count_request()
    execution = await decode(await request.read(), read_execute, lambda asked: admit_body(caller, asked))
    with caller.running_up_to(1):
        kind = wanted_stream(request)
        if kind is not None:
            await stream_execution(service, request, execution, kind)
            return
        execution_id = new_id()
        request.on_hang_up(lambda: service.engine.cancel(execution_id))
        outcome = await service.engine.run(execution, id=execution_id)
        service.executed(execution, outcome)
        await reply_outcome(request, outcome)


async def list_languages(service: Service, request: Request) -> None:
    """GET /v1/languages."""
    body = {"languages": await asyncio.to_thread(_describe_languages, service)}
    await reply(request.send, encode_json(body))


async def list_environments(service: Service, request: Request) -> None:
    """GET /v1/environments. Those that are configured and not built yet have no packages and are not warm."""
    if service.settings.backend == "container":
        described = _describe_images(service.settings)
    else:
        described = await asyncio.to_thread(_describe_all, service.environments)
    await reply(request.send, encode_json({"environments": described}))


async def show_info(service: Service, request: Request) -> None:
    """GET /v1/info. The walls are tried once, at the first question."""
    isolation = await service.isolation.describe()
    settings = request.caller.settings
    body = {
        "version": __version__,
        "backend": service.engine.facts()["backend"],
        "isolation": {**isolation, "network": describe_network(request.caller)},
        "limits": {
            "default": settings.default_limits.as_json(),
            "ceiling": settings.ceiling_limits.as_json(),
        },
    }
    await reply(request.send, encode_json(body))


def _describe_languages(service: Service) -> list[dict[str, Any]]:
    from belljar.languages.listing import describe  # reads thirty files: not every server is asked for them

    return [each.as_json() for each in describe(service.settings, _python_version(service.environments))]


def _python_version(environments: Environments) -> str | None:
    for name in ("default", *environments.known()):
        environment = environments.find(name)
        if environment is not None:
            return environment.version
    return None


def _describe_all(environments: Environments) -> list[dict[str, Any]]:
    return [_describe(environments, name) for name in environments.known()]


def _describe_images(settings: Settings) -> list[dict[str, Any]]:
    """What is in an image is the image's own business; its name here is what a request may say."""
    names = {"default", *(each.partition("=")[0] for each in settings.container.images)}
    return [{"name": name, "python": "", "packages": [], "warm": True} for name in sorted(names)]


def _describe(environments: Environments, name: str) -> dict[str, Any]:
    environment = environments.find(name)
    if environment is None:
        return {"name": name, "python": "", "packages": [], "warm": False}
    packages = [{"name": package, "version": version} for package, version in environment.packages]
    is_warm = bool(environment.warm_imports)
    return {"name": name, "python": environment.version, "packages": packages, "warm": is_warm}
