"""A language as its TOML file describes it.

The files are written by hand, so they are read strictly: an unknown key is an error, else a typo would silently lose
a limit. `docs/languages.md` explains each key.

Patterns are matched against source text and output that may be hostile: keep them free of nested repetition.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.contract.execution import Limits

#: Where the jail shows what was installed or prepared for a toolchain in the state directory.
TOOLCHAINS_DIR = "/toolchains"

#: Known without reading any file.
PYTHON_NAMES = frozenset({"python", "py", "python3"})

_DIRECTORY = Path(__file__).parent
_NAME = re.compile(r"[a-z][a-z0-9]{0,15}")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_VERSION = r"\d+(?:\.\d+)+"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamePart:
    """A name taken from the program's text, such as that of a Java class."""

    pattern: re.Pattern[str]  # its first group is the name
    before: re.Pattern[str] | None  # take the last match before this, instead of the first match
    form: str  # with {} for the name
    default: str  # may name other parts

    def find(self, code: str) -> str | None:
        """The name in `code`, if it has one."""
        end = self.before.search(code) if self.before else None
        if self.before is None:
            found = self.pattern.search(code)
        elif end is None:
            return None
        else:
            found = None
            for found in self.pattern.finditer(code, 0, end.start()):  # noqa: B007  (the last one is wanted)
                pass
        return self.form.replace("{}", found[1]) if found else None


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileStep:
    """The command that compiles the source."""

    argv: tuple[str, ...]
    outputs: tuple[str, ...]  # globs over the work directory
    limits: Limits
    env: Mapping[str, str] = field(default_factory=dict)
    standby: tuple[str, ...] = ()  # may be started ahead: reads the source from stdin, writes the one output to stdout


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """How to recognise a failed run as a syntax error; every condition given must hold."""

    argv: tuple[str, ...] = ()  # exits with non-zero if the source cannot be parsed
    pattern: re.Pattern[str] | None = None  # in standard error of the run
    exit_code: int | None = None  # of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """The packages that contain the toolchain; every name was tested."""

    debian: tuple[str, ...] = ()
    debian_libraries: tuple[str, ...] = ()  # expected by programs, whatever the toolchain was installed from
    npm: tuple[str, ...] = ()  # with their version
    pypi: tuple[str, ...] = ()  # with their version
    integrity: Mapping[str, str] = field(default_factory=dict)  # of npm packages, as npm writes it
    core: bool = False  # part of `belljar languages install core`
    note: str = ""  # what no package manager can do, or what to know about the version

    @property
    def has_packages(self) -> bool:
        """Whether `belljar languages install` can install the toolchain."""
        return bool(self.debian or self.npm or self.pypi)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Commands that make the toolchain start faster; run once, on our own text, with its directory as cwd."""

    commands: tuple[tuple[str, ...], ...]
    files: Mapping[str, str]  # written first; `copies` names files next to the TOML file
    optional: bool = False  # the toolchain works without it, so its first programs do not wait
    env: Mapping[str, str] = field(default_factory=dict)  # of the compile step, once prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """A program, and its output, that proves that the toolchain works."""

    source: str
    stdout: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    name: str
    title: str
    aliases: tuple[str, ...]
    extensions: tuple[str, ...]  # of source files, without the dot; the first is its own
    source: str  # what the program's file is called; may have parts of `names`
    names: Mapping[str, NamePart]
    needs: tuple[str, ...]  # commands on the jail's PATH, or absolute paths, which may be globs
    probe: tuple[str, ...]  # prints the version
    version_pattern: re.Pattern[str]
    reads: tuple[str, ...]  # directories outside /usr that it reads, which may be globs
    warm: tuple[str, ...]  # files that a run reads much of, which may be globs
    env: Mapping[str, str]
    compile: CompileStep | None
    run: tuple[str, ...]
    standby: tuple[str, ...]  # the same, started ahead; waits for a program as `standby.cjs` does
    runtime_threads: int  # threads and processes of the runtime itself; a program's own come on top
    runtime_mb: int  # memory of the runtime itself; a program's own comes on top
    check: Check | None
    install: Install
    prepare: Prepare | None
    hello: Hello
    text: str  # of the TOML file: part of the key of compiled programs

    def plan(self, code: str, files: tuple[str, ...] = (), memory_bytes: int = 0) -> Plan:
        """Fill in the placeholders for this program."""
        values = {
            "toolchain": f"{TOOLCHAINS_DIR}/{self.name}",
            "toolchains": TOOLCHAINS_DIR,
            # All that the cgroup allows: the kernel ends a heap that grows past it, as it does with any program.
            "memory_mb": str(max(16, memory_bytes >> 20) + self.runtime_mb),
        }
        for name, part in self.names.items():
            values[name] = part.find(code) or _fill(part.default, values)
        values["source"] = _fill(self.source, values)
        suffix = "." + self.extensions[0]
        sources = tuple(path for path in files if path.endswith(suffix) and path != values["source"])
        return Plan(source=values["source"], sources=(values["source"], *sources), values=values)

    @property
    def all_names(self) -> tuple[str, ...]:
        """Every name that a caller may use."""
        return (self.name, *self.aliases)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A toolchain's commands with all placeholders filled in."""

    source: str
    sources: tuple[str, ...]
    values: Mapping[str, str]

    def fill(self, argv: tuple[str, ...]) -> list[str]:
        """Return the final `argv`; `{sources}` becomes one argument for each file."""
        words: list[str] = []
        for word in argv:
            if word == "{sources}":
                words += [path if not path.startswith("-") else f"./{path}" for path in self.sources]
            else:
                words.append(_fill(word, self.values))
        return words


def _fill(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda found: values[found[1]], text)


@functools.cache
def load_all() -> Mapping[str, Toolchain]:
    """Every language, by its name, in order."""
    return {path.stem: _read(path) for path in sorted(_DIRECTORY.glob("*.toml"))}


def load_one(name: str) -> Toolchain:
    """Load one language; `name` must be the name of one."""
    return load_all()[name]


@functools.cache
def _by_word() -> Mapping[str, str]:
    found: dict[str, str] = {}
    for toolchain in load_all().values():
        for word in toolchain.all_names:
            if found.setdefault(word.lower(), toolchain.name) != toolchain.name:
                raise InvalidSettings(f"two languages are called {word!r}: {found[word]} and {toolchain.name}")
    return found


def find_name(word: str) -> str | None:
    """Find the language that `word` names, ignoring case."""
    lower = word.lower()
    return "python" if lower in PYTHON_NAMES else _by_word().get(lower)


def find_by_extension(extension: str) -> str | None:
    """Find the language of source files with this extension (without the dot)."""
    for toolchain in load_all().values():
        if extension in toolchain.extensions:
            return toolchain.name
    return None


# ---- reading a file


class _Table:
    """A TOML table: every key is taken once, and a key left over is an error."""

    def __init__(self, where: str, content: Any) -> None:
        if not isinstance(content, dict):
            raise InvalidSettings(f"{where} must be a table")
        self.where = where
        self.left = dict(content)

    def take(self, key: str, kind: type, default: Any = ...) -> Any:
        if key not in self.left:
            if default is ...:
                raise InvalidSettings(f"{self.where}: {key} is missing")
            return default
        value = self.left.pop(key)
        if not isinstance(value, kind):
            raise InvalidSettings(f"{self.where}: {key} must be a {kind.__name__}, not {value!r}")
        return value

    def words(self, key: str, default: Any = ()) -> tuple[str, ...]:
        value = self.take(key, list, default)
        if not all(isinstance(each, str) for each in value):
            raise InvalidSettings(f"{self.where}: {key} must be a list of strings")
        return tuple(value)

    def pattern(self, key: str, default: str | None = None) -> re.Pattern[str] | None:
        text = self.take(key, str, default)
        return None if text is None else re.compile(text, re.MULTILINE)

    def strings(self, key: str) -> Mapping[str, str]:
        table = self.take(key, dict, {})
        if not all(isinstance(each, str) for each in table.values()):
            raise InvalidSettings(f"{self.where}: {key} must hold strings")
        return dict(table)

    def table(self, key: str) -> _Table | None:
        return _Table(f"{self.where} [{key}]", self.take(key, dict)) if key in self.left else None

    def end(self) -> None:
        if self.left:
            raise InvalidSettings(f"{self.where}: unknown key {next(iter(self.left))!r}")


def _read(path: Path) -> Toolchain:
    text = path.read_text("utf-8")
    try:
        return parse(path.stem, text)
    except (tomllib.TOMLDecodeError, re.error) as error:
        raise InvalidSettings(f"{path.name} cannot be read: {error}") from error


def parse(stem: str, text: str) -> Toolchain:
    """The toolchain that `text` describes.

    Raises:
        InvalidSettings: a key is missing, unknown or of the wrong type.
    """
    table = _Table(f"{stem}.toml", tomllib.loads(text))
    name = table.take("name", str)
    if name != stem or not _NAME.fullmatch(name):
        raise InvalidSettings(f"{stem}.toml: name must be {stem!r}, of small letters and digits")
    pattern = table.pattern("version", _VERSION)
    assert pattern is not None
    run, standby = _read_run(table.table("run"))
    prepare = _read_prepare(table.table("prepare"))
    toolchain = Toolchain(
        name=name,
        title=table.take("title", str),
        aliases=table.words("aliases"),
        extensions=table.words("extensions", ...),
        source=table.take("source", str),
        names=_read_names(table.table("names")),
        needs=table.words("needs", ...),
        probe=table.words("probe"),
        version_pattern=pattern,
        reads=table.words("reads"),
        warm=table.words("warm"),
        env=table.strings("env"),
        compile=_read_compile(table.table("compile")),
        run=run,
        standby=standby,
        runtime_threads=table.take("runtime_threads", int, 0),
        runtime_mb=table.take("runtime_mb", int, 0),
        check=_read_check(table.table("check")),
        install=_read_install(table.table("install")),
        prepare=prepare,
        hello=_read_hello(table.table("hello"), table.where),
        text=text + "".join(prepare.files.values() if prepare else ()),
    )
    table.end()
    return toolchain


def _read_names(table: _Table | None) -> Mapping[str, NamePart]:
    parts: dict[str, NamePart] = {}
    for name in list(table.left) if table else ():
        part = table.table(name) if table else None
        assert part is not None
        pattern = part.pattern("pattern")
        if pattern is None or pattern.groups < 1:
            raise InvalidSettings(f"{part.where}: pattern must have a group")
        parts[name] = NamePart(
            pattern=pattern,
            before=part.pattern("before"),
            form=part.take("form", str, "{}"),
            default=part.take("default", str),
        )
        part.end()
    return parts


def _read_compile(table: _Table | None) -> CompileStep | None:
    if table is None:
        return None
    limits = table.take("limits", dict, {})
    try:
        cpu_seconds = 2 * limits.get("wall_seconds", 30.0)
        defaults = {"wall_seconds": 30.0, "cpu_seconds": cpu_seconds, "memory_bytes": 1 << 30, "processes": 128}
        step = CompileStep(
            argv=table.words("argv", ...),
            outputs=table.words("outputs", ...),
            limits=Limits(**{**defaults, **limits}),
            env=table.strings("env"),
            standby=table.words("standby"),
        )
    except TypeError as error:
        raise InvalidSettings(f"{table.where}: limits: {error}") from None
    table.end()
    return step


def _read_run(table: _Table | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if table is None:
        return (), ()  # Python alone has no command: its zygote runs the program
    argv, standby = table.words("argv", ...), table.words("standby")
    table.end()
    return argv, standby


def _read_check(table: _Table | None) -> Check | None:
    if table is None:
        return None
    check = Check(
        argv=table.words("argv"), pattern=table.pattern("stderr"), exit_code=table.take("exit_code", int, None)
    )
    table.end()
    return check


def _read_install(table: _Table | None) -> Install:
    if table is None:
        return Install()
    install = Install(
        debian=table.words("debian"),
        debian_libraries=table.words("debian_libraries"),
        npm=table.words("npm"),
        pypi=table.words("pypi"),
        integrity=table.strings("integrity"),
        core=table.take("core", bool, False),
        note=table.take("note", str, ""),
    )
    for package in (*install.npm, *install.pypi):
        if not re.search(r"(?<!^)(@|==)\d", package):
            raise InvalidSettings(f"{table.where}: {package!r} must have a version")
    table.end()
    return install


def _read_prepare(table: _Table | None) -> Prepare | None:
    if table is None:
        return None
    commands = table.take("commands", list, [])
    if not all(isinstance(each, list) and all(isinstance(word, str) for word in each) for each in commands):
        raise InvalidSettings(f"{table.where}: commands must be a list of lists of strings")
    copies = {name: (_DIRECTORY / name).read_text("utf-8") for name in table.words("copies")}
    prepare = Prepare(
        commands=tuple(map(tuple, commands)),
        files={**table.strings("files"), **copies},
        optional=table.take("optional", bool, False),
        env=table.strings("env"),
    )
    table.end()
    return prepare


def _read_hello(table: _Table | None, where: str) -> Hello:
    if table is None:
        raise InvalidSettings(f"{where}: [hello] is missing")
    hello = Hello(source=table.take("source", str), stdout=table.take("stdout", str))
    table.end()
    return hello
