"""`belljar serve`: starts the HTTP server."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from belljar.contract.errors import InvalidSettings
from belljar.frontends.cli.options import define_set, define_walls, load_with_flags, read_set
from belljar.settings import Settings

if TYPE_CHECKING:
    from belljar.telemetry import Log


def define_address(parser: argparse.ArgumentParser) -> None:
    """Add the options shared by `belljar serve` and `belljar proxy`."""
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address to listen on; addresses other than loopback require a key"
    )
    parser.add_argument("--port", metavar="N", type=int, help="port to listen on; 0 picks a free port")
    parser.add_argument(
        "--api-key",
        metavar="KEY",
        help="a single key for all clients; visible in the process list, so prefer the key file",
    )
    define_set(parser, "pool.max_running=16")
    parser.add_argument(
        "--xmaster-config",
        metavar="DIR",
        help="read the configuration files of X-Master's code server from this directory",
    )


def define(parser: argparse.ArgumentParser) -> None:
    define_address(parser)
    parser.add_argument(
        "--listen",
        metavar="DIALECT:PORT",
        action="append",
        help="serve another system's API on a separate port, such as xmaster:30008 (repeatable)",
    )
    parser.add_argument(
        "--backend", choices=("local", "container"), help="where programs run; container requires Docker or Podman"
    )
    parser.add_argument("--image", "--python-image", metavar="IMAGE", help="container image for Python")
    parser.add_argument("--js-image", metavar="IMAGE", help="container image for the environment 'javascript'")
    parser.add_argument(
        "--grace", metavar="SECONDS", type=float, help="time for running programs to finish on shutdown"
    )
    define_walls(parser)
    parser.epilog = (
        "Settings come from --config, environment variables (BELLJAR_SERVER_PORT, …; also HOST, PORT, DEBUG, API_KEY,\n"
        "MAX_KERNELS, KERNEL_TIMEOUT, MAX_EXECUTION_TIME and MAX_MEMORY_MB) and these options; later ones win.\n"
        "SIGTERM stops gracefully; a second SIGTERM stops immediately."
    )


def execute(options: argparse.Namespace) -> int:
    """Serve until a signal stops it."""
    settings = load_server_settings(options)
    # Imported late: other commands import this module, but not the server.
    from belljar.frontends.api.server import serve

    serve_until_stopped(serve, settings)
    return 0


def serve_until_stopped(serve: Callable[[Settings, Log], Coroutine[Any, Any, None]], settings: Settings) -> None:
    """Set up the log and run a server, on uvloop if it is installed, else on asyncio's event loop."""
    from belljar.telemetry import Log, set_up_logging

    log = Log(log_format=settings.server.log_format)
    set_up_logging(log, is_debugging=settings.server.debug)
    try:
        try:
            import uvloop
        except ImportError:
            asyncio.run(serve(settings, log))
        else:
            uvloop.run(serve(settings, log))
    finally:
        log.close()


def load_server_settings(options: argparse.Namespace) -> Settings:
    """Load the settings and apply this command line's options.

    Raises:
        InvalidSettings: a file, an environment variable or a flag is invalid.
    """
    flags = read_xmaster_config(Path(options.xmaster_config)) if options.xmaster_config else {}
    flags |= read_set(options)
    for name, value in (
        ("server.host", options.host),
        ("server.port", options.port),
        ("server.api_key", options.api_key),
        ("server.grace_seconds", getattr(options, "grace", None)),
        ("server.listen", tuple(getattr(options, "listen", None) or ()) or None),
        ("backend", getattr(options, "backend", None)),
        ("container.image", getattr(options, "image", None)),
        ("container.images", (f"javascript={options.js_image}",) if getattr(options, "js_image", None) else None),
    ):
        if value is not None:
            flags[name] = value
    if "debug" in options:
        flags["server.debug"] = True
    return load_with_flags(options, flags, takes_familiar_names=True)


# ---- the configuration files of X-Master's code server


def read_xmaster_config(directory: Path) -> dict[str, Any]:
    """Translate the files in `directory` into settings, by dotted name.

    Their values override a settings file and are overridden by flags. Every file is optional. `mcp_config.json` holds
    the addresses of the original's processes; Belljar has only one process, so the file is only checked to be JSON.

    Raises:
        InvalidSettings: the directory or a file cannot be read.
    """
    if not directory.is_dir():
        raise InvalidSettings(f"--xmaster-config: {directory} is not a directory")
    found: dict[str, Any] = {}
    found.update(_xmaster_web(_read_xmaster_file(directory, "web_agent.json", dict)))
    paper_prompt = _read_xmaster_file(directory, "paper_agent.json", dict).get("paperQA_prompt")
    if isinstance(paper_prompt, str):
        found["web.paper_prompt"] = paper_prompt
    found.update(_xmaster_models(_read_xmaster_file(directory, "llm_call.json", dict)))
    servers = _xmaster_servers(directory, _read_xmaster_file(directory, "server_list.json", list))
    found.update(servers)
    if not servers:
        found["tools.builtin"] = ("web_search", "web_parse")
    _read_xmaster_file(directory, "mcp_config.json", dict)
    return found


def _read_xmaster_file(directory: Path, name: str, kind: type) -> Any:
    path = directory / name
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"cannot read {path}: {error}") from error
    if not isinstance(value, kind):
        raise InvalidSettings(f"{path} must hold a JSON {'object' if kind is dict else 'list'}")
    return value


def _xmaster_web(web: dict[str, Any]) -> dict[str, Any]:
    names = {
        "serper_api_key": "web.serper_api_key",
        "search_region": "web.search_region",
        "search_lang": "web.search_lang",
        "USE_MODEL": "llm.use_model",
        "BASE_MODEL": "llm.base_model",
    }
    found = {names[name]: str(value) for name, value in web.items() if name in names}
    prompts = web.get("user_prompt")
    if isinstance(prompts, dict) and isinstance(prompts.get("search_conclusion"), str):
        found["web.summary_prompt"] = prompts["search_conclusion"]
    return found


def _xmaster_models(models: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, model in models.items():
        if not isinstance(model, dict) or not isinstance(model.get("url"), str):
            raise InvalidSettings(f"llm_call.json: {name!r} has no url")
        found[f"llm.models.{name}.url"] = model["url"]
        found[f"llm.models.{name}.authorization"] = str(model.get("authorization") or "")
        if "retry_time" in model:
            found[f"llm.models.{name}.retries"] = model["retry_time"]
    return found


def _xmaster_servers(directory: Path, servers: list[Any]) -> dict[str, Any]:
    """Entries are URLs, or paths to .py or .js files, which become commands."""
    found: dict[str, Any] = {}
    for number, each in enumerate(servers, 1):
        if not isinstance(each, str):
            raise InvalidSettings(f"server_list.json: entry {number} must be a string")
        name = f"xmaster-{number}"
        if each.startswith(("http://", "https://")):
            found[f"tools.servers.{name}.url"] = each
            continue
        if not each.endswith((".py", ".js")):
            raise InvalidSettings(f"server_list.json: {each!r} is neither a .py or .js file nor a URL")
        path = Path(each) if Path(each).exists() else directory / each
        command = (sys.executable if each.endswith(".py") else "node", str(path.absolute()))
        found[f"tools.servers.{name}.command"] = command
    return found
