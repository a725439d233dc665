"""Checks that settings are valid, alone and together."""

from __future__ import annotations

import dataclasses
import ipaddress
import math
import re

from belljar.contract.errors import InvalidSettings
from belljar.contract.execution import Limits
from belljar.settings.model import (
    BUILTIN_TOOLS,
    WALL_NAMES,
    ServerSettings,
    SessionSettings,
    Settings,
    ToolSettings,
)

_RUNNERS_MAX = 32  # each is an instance of its own, and a machine has room for 64


def check(settings: Settings) -> None:
    """Raise InvalidSettings when a value makes no sense, alone or beside the others."""
    for wall in settings.jail.without_walls:
        if wall not in WALL_NAMES:
            raise InvalidSettings(
                f"unknown wall {wall!r}; walls that can be waived: {', '.join(WALL_NAMES)}", wall=wall
            )
    for each in dataclasses.fields(Limits):
        default, ceiling = getattr(settings.default_limits, each.name), getattr(settings.ceiling_limits, each.name)
        if not (math.isfinite(default) and math.isfinite(ceiling) and 0 < default <= ceiling):
            raise InvalidSettings(
                f"default_limits.{each.name} ({default}) must be above 0 and at most the ceiling, "
                f"ceiling_limits.{each.name} ({ceiling})"
            )
    for name in ("max_running", "zygote_forks"):
        if getattr(settings.pool, name) < 1:
            raise InvalidSettings(f"pool.{name} must be at least 1")
    for name in ("compile_cache_bytes", "standby_processes"):
        if getattr(settings.languages, name) < 0:
            raise InvalidSettings(f"languages.{name} must be 0 or more")
    _check_server(settings.server)
    _check_container(settings)
    if settings.mcp.output not in ("plain", "structured"):
        raise InvalidSettings(f"mcp.output is {settings.mcp.output!r} but must be plain or structured")
    _check_sessions(settings.sessions)
    _check_tools(settings.tools)
    _check_network(settings)
    for name in settings.environments:
        check_environment_name(name)


def _check_server(server: ServerSettings) -> None:
    if not 0 <= server.port <= 65535:
        raise InvalidSettings(f"server.port is {server.port} but must be 0 to 65535")
    if server.log_format not in ("auto", "json", "text"):
        raise InvalidSettings(f"server.log_format is {server.log_format!r} but must be auto, json or text")
    for name in (
        *("body_bytes", "bodies_bytes", "batch_executions", "batch_bytes", "max_connections"),
        *("head_seconds", "send_seconds", "keep_alive_seconds", "probe_seconds"),
    ):
        if not getattr(server, name) > 0:
            raise InvalidSettings(f"server.{name} must be above 0")
    if not 0 <= server.runners <= _RUNNERS_MAX:
        raise InvalidSettings(f"server.runners is {server.runners} but must be 0 to {_RUNNERS_MAX}")
    if server.body_bytes > server.bodies_bytes:
        raise InvalidSettings("server.bodies_bytes must be at least server.body_bytes")


def _check_container(settings: Settings) -> None:
    container = settings.container
    for name, value, known in (
        ("backend", settings.backend, ("local", "container")),
        ("container.engine", container.engine, ("", "docker", "podman")),
        ("container.fresh", container.fresh, ("never", "session", "run")),
    ):
        if value not in known:
            raise InvalidSettings(f"{name} is {value!r} but must be one of: {', '.join(filter(None, known))}")
    for name in ("start_seconds", "call_seconds", "pull_seconds", "max_containers", "processes"):
        if not getattr(container, name) > 0:
            raise InvalidSettings(f"container.{name} must be above 0")
    for each in container.images:
        name, equals, image = each.partition("=")
        check_environment_name(name)
        if not equals or not image:
            raise InvalidSettings(f"container.images takes NAME=IMAGE, not {each!r}")


def _check_sessions(sessions: SessionSettings) -> None:
    if sessions.when_full not in ("refuse", "replace_oldest_idle"):
        raise InvalidSettings(f"sessions.when_full is {sessions.when_full!r} but must be refuse or replace_oldest_idle")
    if sessions.max_sessions < 0 or sessions.max_per_caller < 0:
        raise InvalidSettings("sessions.max_sessions and sessions.max_per_caller must not be negative")
    if not 0 < sessions.idle_seconds <= sessions.idle_seconds_max < math.inf:
        raise InvalidSettings("sessions.idle_seconds must be above 0 and at most sessions.idle_seconds_max")


def _check_tools(tools: ToolSettings) -> None:
    for name in tools.builtin:
        if name not in BUILTIN_TOOLS:
            raise InvalidSettings(f"tools.builtin: unknown tool {name!r}; choose from: {', '.join(BUILTIN_TOOLS)}")
    for each in dataclasses.fields(tools):
        value = getattr(tools, each.name)
        if isinstance(value, int | float) and not value > 0:
            raise InvalidSettings(f"tools.{each.name} must be above 0")
    for name, server in tools.servers.items():
        if bool(server.command) == bool(server.url):
            raise InvalidSettings(f"tools.servers.{name} must have either a command or a url")


def _check_network(settings: Settings) -> None:
    network = settings.network
    for port in settings.web.fetch_ports:
        if not _is_port(port):
            raise InvalidSettings(f"web.fetch_ports: {port!r} is not a port")
    for port in network.ports:
        if not _is_port(port):
            raise InvalidSettings(f"network.ports: {port!r} is not a port")
    for each in network.allow_private:
        name, colon, port = each.rpartition(":")
        if any(letter in each for letter in "*?[/") or (colon and not (name and _is_port(port))):
            raise InvalidSettings(f"network.allow_private takes NAME or NAME:PORT, without patterns, not {each!r}")
    for each in network.deny:
        if "/" in each and not _is_address(each, is_network=True):
            raise InvalidSettings(f"network.deny: {each!r} is not a network; write it as 203.0.113.0/24")
    for each in network.hosts:
        name, equals, address = each.partition("=")
        if not (name and equals and _is_address(address)):
            raise InvalidSettings(f"network.hosts takes NAME=ADDRESS, not {each!r}")
    for name in ("connections", "connections_at_once", "total_bytes", "connect_seconds", "idle_seconds"):
        if not getattr(network, name) > 0:
            raise InvalidSettings(f"network.{name} must be above 0")
    if settings.mcp.network and not network.offered:
        raise InvalidSettings("mcp.network needs network.offered: set both, or neither")


def _is_port(text: str) -> bool:
    return text.isascii() and text.isdigit() and 0 < int(text) < 65536


def _is_address(text: str, *, is_network: bool = False) -> bool:
    try:
        (ipaddress.ip_network if is_network else ipaddress.ip_address)(text)
    except ValueError:
        return False
    return True


def check_environment_name(name: str) -> None:
    """Raise InvalidSettings unless `name` is safe as a directory name."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        raise InvalidSettings(
            f"environment name {name!r} must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit"
        )
