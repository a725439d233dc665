"""Every setting with its default: one class for each section, and the tree that holds them all."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from belljar.contract.execution import MIB, Limits
from belljar.contract.restriction import Restriction

GIB = 1024 * MIB
_CGROUPS = Path("/sys/fs/cgroup")
_CORES = len(os.sched_getaffinity(0))

#: Every wall that an operator may waive by name, and what is lost. `jail/probe` finds out which are available.
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


def _bodies_bytes() -> int:
    """A quarter of the memory that we may use: programs and copies of bodies need the rest."""
    return min(max(_memory_bytes() // 4, 128 * MIB), 8 * GIB)


def _memory_bytes() -> int:
    """The smallest of the machine's memory and the limits of our control groups."""
    return min([os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *_limits()])


def _limits() -> Iterator[int]:
    for file in _limit_files():
        with contextlib.suppress(OSError, ValueError):  # "max", or a group that we cannot see
            yield int(file.read_text())


def _limit_files() -> Iterator[Path]:
    """The limit files of our group and its parents. A container often shows its own group as the root."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
            parts = [each for each in path.split("/") if each not in ("", "..")]
            for depth in range(len(parts), -1, -1):
                yield root.joinpath(*parts[:depth], name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JailSettings:
    without_walls: tuple[str, ...] = ()  # walls that the operator waives by name
    uid_base: int = 1_900_000_000  # first host uid of the 65,536 each instance gives its guests (as root)
    cgroup_parent: str = "belljar"  # name of our directory in each cgroup hierarchy


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """How much is kept warm and how much runs at once."""

    max_running: int = max(8, 4 * _CORES)  # programs running at the same time
    max_queued: int = 4096  # executions waiting for a slot; further ones are refused
    ready_guests: int = 2 * _CORES  # jailed forks waiting for a program, for each kind in use
    zygote_forks: int = 20_000  # a zygote is replaced after this many forks
    zygote_seconds: float = 3600.0  # … or at this age
    idle_seconds: float = 600.0  # a zygote of kind "packages" is ended when unused for this long
    jail_seconds: float = 300.0  # spare jails are destroyed this long after a burst, when nothing runs


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
    flood_bytes: int = 128 * MIB  # more output than this, pictures included, ends the program


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentSettings:
    """How a named guest environment is built and warmed."""

    packages: tuple[str, ...] = DEFAULT_PACKAGES
    python: str = ""  # interpreter to build from; empty: the one Belljar runs on
    warm_imports: tuple[str, ...] = DEFAULT_WARM_IMPORTS  # imported ahead by the zygote of kind "packages"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How `belljar serve` is reached, and what its requests may use."""

    host: str = "127.0.0.1"  # any address but loopback needs a key
    port: int = 8000  # 0: any free one
    runners: int = min(4, max(1, _CORES // 4))  # processes that run Python programs for the server; 0: none
    listen: tuple[str, ...] = ()  # dialects with a port of their own, each as NAME:PORT
    api_key: str = ""  # a key in addition to those of `belljar key`; its name is "operator"
    keys_file: str = ""  # where `belljar key` keeps its hashes; empty: keys.json in the state directory
    allowed_hosts: tuple[str, ...] = ()  # names in the Host header beside localhost and addresses; "*" for any
    allowed_origins: tuple[str, ...] = ()  # other origins whose pages may call the server, such as https://example.org
    body_bytes: int = 96 * MIB  # of one request
    bodies_bytes: int = field(default_factory=_bodies_bytes)  # of all requests and answers in progress together
    batch_executions: int = 10_000  # in one batch
    batch_bytes: int = 256 * MIB  # results of one batch that is not streamed; at most a quarter of bodies_bytes
    max_connections: int = 8192  # open at the same time
    head_seconds: float = 20.0  # to send a request's headers, and between two pieces of its body
    send_seconds: float = 60.0  # a client that takes less than 16 KiB/s of its answer for this long is disconnected
    keep_alive_seconds: float = 75.0  # an idle connection is kept this long
    grace_seconds: float = 10.0  # for running programs when the server is asked to stop
    probe_seconds: float = 10.0  # an idle server proves this often that it can still run a program
    log_format: str = "auto"  # json, text, or auto: text at a terminal
    debug: bool = False  # log code and output too
    hashed_tests_dir: str = ""  # tests that callers of /py_exec name by hash: OWNER/NAME.jsonl


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    max_sessions: int = 64  # open at the same time
    max_per_caller: int = 0  # … of one key; 0: no limit of its own
    idle_seconds: float = 600.0  # a session that is unused for this long is closed
    idle_seconds_max: float = 86400.0  # the longest that a caller may request
    when_full: str = "refuse"  # or replace_oldest_idle: close the session that has been idle longest


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
class NetworkSettings:
    """Network access for programs that ask for it."""

    offered: bool = False  # if false, requests for a network are refused
    ports: tuple[str, ...] = ("80", "443")  # that may be connected to
    allow: tuple[str, ...] = ("*",)  # names of hosts, as globs
    deny: tuple[str, ...] = ()  # names, as globs, and networks such as 203.0.113.0/24; wins over the rest
    allow_private: tuple[str, ...] = ()  # NAME or NAME:PORT; may be reached although the address is not public
    hosts: tuple[str, ...] = ()  # NAME=ADDRESS, for names that bypass DNS
    connections: int = 1000  # of one execution, or one cell
    connections_at_once: int = 64
    total_bytes: int = GIB  # of one execution, or one cell, both ways together
    connect_seconds: float = 15.0  # to find and to reach a host
    idle_seconds: float = 120.0  # a connection that is silent for this long is closed


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolServerSettings:
    """One MCP server whose tools programs may call: a command, or a URL."""

    command: tuple[str, ...] = ()  # connected by its standard input and output
    url: str = ""  # connected by HTTP; a path that ends in /sse uses the older protocol
    env: tuple[str, ...] = ()  # for the command: NAME=VALUE, or NAME to pass on the server's own value
    headers: tuple[str, ...] = ()  # for the URL: "Name: value"
    prefix: str = ""  # put before the name of each of its tools


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolSettings:
    """Host functions that programs may call."""

    builtin: tuple[str, ...] = ()  # of our own: web_search, web_parse, fetch_web, read_pdf, llm
    calls_max: int = 5000  # in one execution
    calls_per_second: float = 2000.0  # in one execution; beyond that, the program waits
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
    """A language model behind an OpenAI-compatible API."""

    url: str = ""  # of its chat completions, with or without /chat/completions
    authorization: str = ""  # the whole header, or only the key
    retries: int = 3
    seconds: float = 120.0  # one attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class LlmSettings:
    """Language models that our own tools use. Keys never leave the host."""

    use_model: str = "gpt-4o"  # tried first
    base_model: str = "qwen-32b"  # tried when that one fails
    models: Mapping[str, ModelSettings] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebSettings:
    """The built-in web tools, which programs without a network can call."""

    search_provider: str = "serper"  # or searxng
    serper_api_key: str = ""
    serper_url: str = "https://google.serper.dev/search"
    scrape_url: str = "https://scrape.serper.dev"  # fetches pages that we cannot; needs that key
    searxng_url: str = ""  # such as http://127.0.0.1:8888
    search_region: str = "us"
    search_lang: str = "en"
    search_tries: int = 4
    fetch_ports: tuple[str, ...] = ("80", "443")  # that pages may be fetched from
    allowed_hosts: tuple[str, ...] = ()  # NAME or NAME:PORT; may be fetched although the address or port is not allowed
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
    compile_cache_bytes: int = GIB  # compiled programs kept on disk; 0: none
    compile_cache_shared: bool = False  # callers share what others compiled from the same source
    standby_processes: int = min(4, _CORES)  # of each runtime that can be started ahead (Node, esbuild); 0: none
    roots: Mapping[str, str] = field(default_factory=dict)  # languages whose toolchain lives in another root directory


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSettings:
    engine: str = ""  # docker or podman; empty: the one whose socket exists
    socket: str = ""  # of the engine, as a path or an address; empty: its usual place
    runtime: str = ""  # runc, crun, runsc or another the engine knows; empty: its default
    image: str = "belljar-python:latest"  # of the environment "default"
    language: str = ""  # with `image`: what that image runs; empty: Python
    images: tuple[str, ...] = ()  # further environments, each as NAME=IMAGE
    allowed_images: tuple[str, ...] = ()  # patterns that a request's "image:NAME" must match, such as lab/*
    fresh: str = "never"  # a container of its own for each "session" or "run", which costs a start each time
    pulls: bool = False  # pull images that the engine does not have
    memory_bytes: int = 0  # of one container with all its programs; 0: three quarters of the machine's
    processes: int = 16_384  # in one container, threads included
    cpus: float = 0.0  # cores of one container; 0: all
    max_containers: int = 16  # warm at the same time
    start_seconds: float = 60.0  # for a container to come up
    call_seconds: float = 30.0  # for the engine to answer
    pull_seconds: float = 600.0  # to fetch an image


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
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
    network: NetworkSettings = field(default_factory=NetworkSettings)
    tools: ToolSettings = field(default_factory=ToolSettings)
    restriction: Restriction = field(default_factory=Restriction)  # of restricted programs whose request names none
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
