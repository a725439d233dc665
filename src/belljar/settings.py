"""Everything an operator can choose, in one frozen tree, read once.

Later sources win: the defaults below, a TOML file, `BELLJAR_…` variables, flags. `provenance` remembers which one
gave each value. Nothing else in Belljar reads the environment or a configuration file.

A value's name is its path: `pool.max_running` is `[pool] max_running = 8` in the file and
`BELLJAR_POOL_MAX_RUNNING=8` in the environment.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.contract.execution import MIB, Limits
from belljar.contract.restriction import Restriction

GIB = 1024 * MIB
_CORES = len(os.sched_getaffinity(0))

#: Every wall an operator may waive by name, with what is lost. `jail/probe.py` tells which can be had.
WALL_NAMES = ("cgroup", "landlock", "uid")

BUILTIN_TOOLS = ("web_search", "web_parse", "fetch_web", "read_pdf", "llm")
DEFAULT_PACKAGES = ("ipython", "numpy", "pandas", "matplotlib", "pillow", "scipy", "sympy", "requests")
DEFAULT_WARM_IMPORTS = ("numpy", "pandas", "matplotlib.pyplot", "PIL.Image")


def _state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/belljar")
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share") / "belljar"


def _runtime_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/run/belljar")
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "belljar" if base else _state_dir() / "run"


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSettings:
    """The walls."""

    without_walls: tuple[str, ...] = ()  # walls the operator gives up knowingly
    uid_base: int = 1_900_000_000  # first host uid of the 65,536 each instance gives its guests (as root)
    cgroup_parent: str = "belljar"  # name of our directory in each cgroup hierarchy


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How much is kept warm and how much runs at once."""

    max_running: int = max(8, 4 * _CORES)  # programs running at the same time
    max_queued: int = 4096  # executions waiting for their turn; one more is refused
    ready_guests: int = 2 * _CORES  # jailed forks waiting for a program, per weight in use
    zygote_forks: int = 20_000  # a zygote is replaced after this many forks
    zygote_seconds: float = 3600.0  # … or after this long
    idle_seconds: float = 600.0  # a heavy zygote unused for this long is let go


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSettings:
    """What one request may carry in and out."""

    code_bytes: int = 4 * MIB  # source text
    file_count: int = 1000  # files in, and artifacts out
    files_bytes: int = 64 * MIB  # all files in, and all artifacts out
    stdin_bytes: int = 64 * MIB
    env_bytes: int = 128 * 1024  # arguments and environment together
    display_count: int = 64
    display_bytes: int = 16 * MIB  # all pictures of one execution
    flood_bytes: int = 128 * MIB  # output past this ends the program


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """How a named guest environment is built and warmed."""

    packages: tuple[str, ...] = DEFAULT_PACKAGES
    python: str = ""  # interpreter to build from; empty: the one Belljar runs on
    warm_imports: tuple[str, ...] = DEFAULT_WARM_IMPORTS  # done ahead in the heavy zygote


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How `belljar serve` meets the network."""

    host: str = "127.0.0.1"  # any address but loopback needs a key
    port: int = 8000  # 0: any free one
    listen: tuple[str, ...] = ()  # dialects with a port of their own, each as NAME:PORT
    api_key: str = ""  # one key beside those of `belljar key`; its name is "operator"
    keys_file: str = ""  # where `belljar key` keeps its hashes; empty: keys.json in the state directory
    allowed_hosts: tuple[str, ...] = ()  # names in the Host header beside localhost and addresses; "*" for any
    allowed_origins: tuple[str, ...] = ()  # web pages of other origins that may call us, as https://example.org
    body_bytes: int = 96 * MIB  # of one request
    bodies_bytes: int = 512 * MIB  # of all requests together
    batch_executions: int = 10_000  # in one batch
    max_connections: int = 8192  # open at the same time
    head_seconds: float = 20.0  # to send a request's headers, and between two pieces of its body
    send_seconds: float = 60.0  # without a reader taking anything; then his program ends
    keep_alive_seconds: float = 75.0  # an idle connection is kept this long
    grace_seconds: float = 10.0  # for what runs when we are asked to stop
    probe_seconds: float = 10.0  # an idle server proves this often that it can still run a program
    log_format: str = "auto"  # json, text, or auto: text at a terminal
    debug: bool = False  # log code and output too
    hashed_tests_dir: str = ""  # tests that callers of /py_exec name by hash: OWNER/NAME.jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Interpreters that stay."""

    max_sessions: int = 64  # open at the same time
    max_per_caller: int = 0  # … of one key; 0: as many as there may be
    idle_seconds: float = 600.0  # unused for so long, one is closed
    idle_seconds_max: float = 86400.0  # what a caller may ask for instead
    when_full: str = "refuse"  # or replace_oldest_idle: the one that was unused for longest makes room


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSettings:
    """What the MCP server offers, over stdio and at /mcp."""

    tools: tuple[str, ...] = ()  # names of tools or groups; empty: all
    output: str = "structured"  # plain: results as text alone; structured: also as JSON by a schema
    pass_through_env: tuple[str, ...] = ()  # variables of the server that every program gets
    python_image: str = ""  # container image for Python; empty: the local sandbox
    javascript_image: str = ""  # the same for JavaScript
    network: bool = False  # programs reach the network


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerSettings:
    """One MCP server whose tools programs may call: a command, or a URL."""

    command: tuple[str, ...] = ()  # spoken to over its standard input and output
    url: str = ""  # spoken to over HTTP; a path that ends in /sse by the older protocol
    env: tuple[str, ...] = ()  # for the command: NAME=VALUE, or NAME for our own value of it
    headers: tuple[str, ...] = ()  # for the URL: "Name: value"
    prefix: str = ""  # put before the name of each of its tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """Host functions that programs may call."""

    builtin: tuple[str, ...] = ()  # of our own: web_search, web_parse, fetch_web, read_pdf, llm
    calls_max: int = 5000  # in one execution
    calls_per_second: float = 2000.0  # in one execution; past it, the program waits
    in_flight: int = 16  # calls of one execution that run at the same time; more wait
    call_seconds: float = 120.0  # one call; then it fails
    total_seconds: float = 1800.0  # all calls of one execution, added up
    argument_bytes: int = MIB  # of one call
    result_bytes: int = 4 * MIB  # of one call
    start_seconds: float = 30.0  # for a tool server to start
    servers: Mapping[str, ToolServerSettings] = field(default_factory=dict)


SUMMARY_PROMPT = """\
Answer the question from the page below, and from nothing else.

Question: {user}

Page:
{info}

Reply with one JSON object: {{"content": what the page says about the question, in full, "urls": links on it that \
would tell more, as a list of strings, "score": from 0 (it says nothing about it) to 1 (it answers it)}}."""
PAPER_PROMPT = """\
Answer the question from the paper below, and from nothing else.

Question: {user_query}

Paper:
{pdf_info}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Where a language model is reached, by the OpenAI-compatible API."""

    url: str = ""  # of its chat completions, or what stands before /chat/completions
    authorization: str = ""  # the whole header, or only the key
    retries: int = 3
    seconds: float = 120.0  # one attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """Language models that our own tools use. Keys never leave the host."""

    use_model: str = "gpt-4o"  # asked first
    base_model: str = "qwen-32b"  # asked when that one fails
    models: Mapping[str, ModelSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """What our own tools do on the web, on behalf of programs that cannot."""

    search_provider: str = "serper"  # or searxng
    serper_api_key: str = ""
    serper_url: str = "https://google.serper.dev/search"
    scrape_url: str = "https://scrape.serper.dev"  # asked for a page that we cannot get ourselves; needs that key
    searxng_url: str = ""  # such as http://127.0.0.1:8888
    search_region: str = "us"
    search_lang: str = "en"
    search_tries: int = 4
    allowed_hosts: tuple[str, ...] = ()  # may be fetched although their address is private or our own
    fetch_seconds: float = 10.0  # one page
    fetch_bytes: int = 16 * MIB  # one page or PDF
    read_seconds: float = 30.0  # to get the text out of one
    text_bytes: int = 2 * MIB  # of that text
    prompt_bytes: int = 100_000  # of a page's text that a model is shown
    cache_seconds: float = 3600.0  # answers are remembered this long
    cache_bytes: int = 64 * MIB  # all of them together
    summary_prompt: str = SUMMARY_PROMPT  # with {user} and {info}
    paper_prompt: str = PAPER_PROMPT  # with {user_query} and {pdf_info}
    serve_proxy: bool = False  # /search, /read_pdf and /fetch_web on the main port too
    proxy_requests_per_second: int = 200  # of each client address


@dataclass(frozen=True, slots=True, kw_only=True)
class LanguageSettings:
    """The languages beside Python."""

    compile_cache_bytes: int = GIB  # compiled programs kept on disk; 0: none
    compile_cache_shared: bool = False  # callers may get what others have compiled from the same source
    standby_processes: int = _CORES  # of each runtime that can wait (Node, esbuild), started ahead; 0: none
    roots: Mapping[str, str] = field(default_factory=dict)  # languages whose toolchain lives in another root directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    """The container back end."""

    engine: str = ""  # docker or podman; empty: whichever socket is there
    socket: str = ""  # of the engine, as a path or an address; empty: its usual place
    runtime: str = ""  # runc, crun, runsc or another the engine knows; empty: its default
    image: str = "belljar-python:latest"  # of the environment "default"
    language: str = ""  # with `image`: what that image runs; empty: Python
    images: tuple[str, ...] = ()  # further environments, each as NAME=IMAGE
    allowed_images: tuple[str, ...] = ()  # patterns that a request's "image:NAME" must match, such as lab/*
    fresh: str = "never"  # a container of its own for each "session" or "run", which costs a start each time
    pulls: bool = False  # fetch images that the engine does not hold
    memory_bytes: int = 0  # of one container with all its programs; 0: three quarters of the machine's
    processes: int = 16_384  # in one container, threads included
    cpus: float = 0.0  # cores of one container; 0: all
    max_containers: int = 16  # warm at the same time
    start_seconds: float = 60.0  # for a container to come up
    call_seconds: float = 30.0  # for the engine to answer
    pull_seconds: float = 600.0  # to fetch an image


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The whole tree."""

    backend: str = "local"  # where programs run: local jails, or container: jails in warm containers

    state_dir: Path = field(default_factory=_state_dir)  # guest environments live here
    runtime_dir: Path = field(default_factory=_runtime_dir)  # locks of running instances
    jail: JailSettings = field(default_factory=JailSettings)
    pool: PoolSettings = field(default_factory=PoolSettings)
    request: RequestSettings = field(default_factory=RequestSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    sessions: SessionSettings = field(default_factory=SessionSettings)
    container: ContainerSettings = field(default_factory=ContainerSettings)
    mcp: McpSettings = field(default_factory=McpSettings)
    tools: ToolSettings = field(default_factory=ToolSettings)
    restriction: Restriction = field(default_factory=Restriction)  # of restricted programs whose caller names none
    web: WebSettings = field(default_factory=WebSettings)
    llm: LlmSettings = field(default_factory=LlmSettings)
    languages: LanguageSettings = field(default_factory=LanguageSettings)
    default_limits: Limits = field(default_factory=Limits)
    ceiling_limits: Limits = field(
        default_factory=lambda: Limits(
            wall_seconds=300.0,
            cpu_seconds=300.0,
            memory_bytes=4 * GIB,
            output_bytes=16 * MIB,
            disk_bytes=2 * GIB,
            processes=512,
        )
    )
    environments: Mapping[str, EnvironmentSettings] = field(default_factory=lambda: {"default": EnvironmentSettings()})
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)


#: Settings that hold many of a kind, each with a name of its own.
_NAMED: Mapping[str, type[Any]] = {"servers": ToolServerSettings, "models": ModelSettings}

#: Names that people have set for other code servers, with all they mean here. They count for less than ours.
_FAMILIAR: Mapping[str, tuple[str, ...]] = {
    "HOST": ("server.host",),
    "PORT": ("server.port",),
    "DEBUG": ("server.debug",),
    "API_KEY": ("server.api_key",),
    "ALLOWED_HOSTS": ("server.allowed_hosts",),
    "MAX_KERNELS": ("sessions.max_sessions",),
    "KERNEL_TIMEOUT": ("sessions.idle_seconds",),
    "MAX_EXECUTION_TIME": tuple(
        f"{kind}_limits.{unit}_seconds" for kind in ("default", "ceiling") for unit in ("wall", "cpu")
    ),
    "MAX_MEMORY_MB": ("default_limits.memory_bytes", "ceiling_limits.memory_bytes"),
    "CONTAINER_IMAGE": ("container.image",),
    "CONTAINER_LANGUAGE": ("container.language",),
    "BACKEND": ("container.engine",),
}


def load(
    path: Path | None = None,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
    *,
    takes_familiar_names: bool = False,
) -> Settings:
    """Read the settings; `flags` maps dotted names to values given on the command line.

    `takes_familiar_names` reads HOST, PORT, DEBUG, … as well. Only a server should: elsewhere these names are often
    set for somebody else.

    Raises:
        InvalidSettings: a name is unknown, or a value has the wrong type or makes no sense.
    """
    provenance: dict[str, str] = {}
    settings = Settings()
    environ = os.environ if environ is None else environ
    familiar = familiar_names(environ) if takes_familiar_names else ()
    if ("CONTAINER_IMAGE" in familiar) != ("CONTAINER_LANGUAGE" in familiar):
        raise InvalidSettings("CONTAINER_IMAGE and CONTAINER_LANGUAGE must be set together")
    for source, values in (
        (f"file {path}", _read_file(path) if path else {}),
        *((f"environment, as {name}", _from_familiar(name, environ[name])) for name in familiar),
        ("environment", _from_environ(environ)),
        ("flag", dict(flags or {})),
    ):
        for name, value in values.items():
            settings = _replace(settings, name, value)
            provenance[name] = source
    _check(settings)
    return dataclasses.replace(settings, provenance=provenance)


def _read_file(path: Path) -> dict[str, Any]:
    try:
        tree = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidSettings(f"cannot read the settings file {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSettings(f"the settings file {path} is not valid TOML: {error}") from error
    flat: dict[str, Any] = {}

    def walk(prefix: str, node: Mapping[str, Any]) -> None:
        for key, value in node.items():
            if isinstance(value, dict):
                walk(f"{prefix}{key}.", value)
            else:
                flat[f"{prefix}{key}"] = value

    walk("", tree)
    return flat


def _from_environ(environ: Mapping[str, str]) -> dict[str, Any]:
    by_variable = {"BELLJAR_" + name.upper().replace(".", "_"): name for name in names()}
    return {by_variable[key]: value for key, value in environ.items() if key in by_variable}


def familiar_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Those of the names people have set for other code servers that are set here."""
    return tuple(name for name in _FAMILIAR if environ.get(name))


def _from_familiar(name: str, value: str) -> dict[str, Any]:
    if name == "BACKEND":
        return _chosen_backend(value)
    if name == "ALLOWED_HOSTS" and value.startswith("["):  # a list in JSON, as that server wants it
        value = value.translate(str.maketrans("", "", "[]\"'"))
    if name == "MAX_MEMORY_MB":
        try:
            value = str(int(value) * MIB)
        except ValueError:
            raise InvalidSettings(f"MAX_MEMORY_MB must be a whole number, not {value!r}") from None
    return dict.fromkeys(_FAMILIAR[name], value)


def _chosen_backend(value: str) -> dict[str, Any]:
    """BACKEND names a container engine."""
    if value not in ("docker", "podman"):
        raise InvalidSettings(f"BACKEND is {value!r} but must be docker or podman; for Kubernetes see docs/deploy.md")
    return {"backend": "container", "container.engine": value}


def names() -> list[str]:
    """Dotted names of every setting that is not part of a named environment."""
    found = []
    for outer in dataclasses.fields(Settings):
        if outer.name in ("environments", "provenance"):
            continue
        default = getattr(Settings(), outer.name)
        if dataclasses.is_dataclass(default):
            inner_names = (inner.name for inner in dataclasses.fields(default) if inner.name not in _NAMED)
            found += [f"{outer.name}.{inner}" for inner in inner_names if (outer.name, inner) != ("languages", "roots")]
        else:
            found.append(outer.name)
    return found


def _replace(settings: Settings, name: str, value: Any) -> Settings:
    parts = name.split(".")
    if parts[0] == "environments" and len(parts) >= 3:
        environments = dict(settings.environments)
        environment, attribute = ".".join(parts[1:-1]), parts[-1]  # its name may have dots
        before = environments.get(environment, EnvironmentSettings())
        environments[environment] = dataclasses.replace(before, **{attribute: _convert(name, before, attribute, value)})
        return dataclasses.replace(settings, environments=environments)
    if len(parts) >= 4 and parts[1] in _NAMED:
        return _replace_named(settings, name, parts, value)
    if parts[:2] == ["languages", "roots"] and len(parts) == 3:
        roots = {**settings.languages.roots, parts[2]: str(Path(str(value)).expanduser().absolute())}
        return dataclasses.replace(settings, languages=dataclasses.replace(settings.languages, roots=roots))
    if name not in names():
        raise InvalidSettings(f"unknown setting {name!r}; known are: {', '.join(names())}", setting=name)
    if len(parts) == 1:
        return dataclasses.replace(settings, **{name: _convert(name, settings, name, value)})
    section = getattr(settings, parts[0])
    section = dataclasses.replace(section, **{parts[1]: _convert(name, section, parts[1], value)})
    return dataclasses.replace(settings, **{parts[0]: section})


def _replace_named(settings: Settings, name: str, parts: list[str], value: Any) -> Settings:
    """One of many that have names of their own: `tools.servers.NAME.url`."""
    section: Any = getattr(settings, parts[0], None)
    if not hasattr(section, parts[1]):
        raise InvalidSettings(f"unknown setting {name!r}", setting=name)
    every = dict(getattr(section, parts[1]))
    own, attribute = ".".join(parts[2:-1]), parts[-1]
    before = every.get(own, _NAMED[parts[1]]())
    every[own] = dataclasses.replace(before, **{attribute: _convert(name, before, attribute, value)})
    changed: Any = dataclasses.replace(section, **{parts[1]: every})
    return dataclasses.replace(settings, **{parts[0]: changed})


def _convert(name: str, owner: Any, attribute: str, value: Any) -> Any:
    """Give `value` the type that the default of this setting has."""
    if attribute not in {each.name for each in dataclasses.fields(owner)}:
        raise InvalidSettings(f"unknown setting {name!r}", setting=name)
    current = getattr(owner, attribute)
    try:
        if isinstance(current, tuple):
            parts = value.split(",") if isinstance(value, str) else value
            return tuple(str(part).strip() for part in parts if str(part).strip())
        if isinstance(current, Path):
            return Path(value).expanduser().absolute()
        if isinstance(current, bool):
            return _read_bool(value)
        if isinstance(current, float):
            return float(value)
        if isinstance(current, int):
            return int(value)
        return str(value)
    except (TypeError, ValueError):
        wanted = type(current).__name__
        raise InvalidSettings(f"setting {name!r} must be a {wanted}, not {value!r}", setting=name) from None


def _read_bool(value: Any) -> bool:
    word = str(value).strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off", ""):
        return False
    raise ValueError


def _check(settings: Settings) -> None:
    for wall in settings.jail.without_walls:
        if wall not in WALL_NAMES:
            raise InvalidSettings(
                f"there is no wall {wall!r} that can be given up; these can: {', '.join(WALL_NAMES)}", wall=wall
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
    if settings.languages.compile_cache_bytes < 0:
        raise InvalidSettings("languages.compile_cache_bytes must be 0 or more")
    _check_server(settings.server)
    _check_container(settings)
    if settings.mcp.output not in ("plain", "structured"):
        raise InvalidSettings(f"mcp.output is {settings.mcp.output!r} but must be plain or structured")
    _check_sessions(settings.sessions)
    _check_tools(settings.tools)
    for name in settings.environments:
        check_environment_name(name)


def _check_server(server: ServerSettings) -> None:
    if not 0 <= server.port <= 65535:
        raise InvalidSettings(f"server.port is {server.port} but must be 0 to 65535")
    if server.log_format not in ("auto", "json", "text"):
        raise InvalidSettings(f"server.log_format is {server.log_format!r} but must be auto, json or text")
    for name in (
        *("body_bytes", "bodies_bytes", "batch_executions", "max_connections"),
        *("head_seconds", "send_seconds", "keep_alive_seconds", "probe_seconds"),
    ):
        if not getattr(server, name) > 0:
            raise InvalidSettings(f"server.{name} must be above 0")
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
            raise InvalidSettings(f"tools.builtin: there is no tool {name!r}; known are: {', '.join(BUILTIN_TOOLS)}")
    for each in dataclasses.fields(tools):
        value = getattr(tools, each.name)
        if isinstance(value, int | float) and not value > 0:
            raise InvalidSettings(f"tools.{each.name} must be above 0")
    for name, server in tools.servers.items():
        if bool(server.command) == bool(server.url):
            raise InvalidSettings(f"tools.servers.{name} must have either a command or a url")


def check_environment_name(name: str) -> None:
    """Raise InvalidSettings unless `name` is safe as a directory name."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", name):
        raise InvalidSettings(
            f"environment name {name!r} must be 1 to 64 of a-z 0-9 . _ - and start with a letter or digit"
        )
