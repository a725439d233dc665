"""The Python that starts in every container: this machine's own, mounted into it read-only.

An image may hold any system, or hardly one: another libc, no Python, not even `sleep`. And the first process in a
container holds rights until the walls stand, so it must not be a file of the image. So our own interpreter is copied
into a directory with the libraries and modules that our code in there needs. Every container has that directory
mounted, and the loader in it is what is started.

The image's own Python, if it has one, comes later and without rights: programs are forked from it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from belljar.contract.errors import SandboxFault
from belljar.inside.warden import host_python

_PACKAGE = Path(__file__).resolve().parents[2]
_LAYOUT = "2"  # of the directory; another one is made when this changes
_SECONDS = 60.0
_PT_INTERP = 3
#: Prints which modules everything in `inside` imports, those included that it imports only when something fails.
_LOOK = """
import importlib, json, pkgutil, site, sys, traceback
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import belljar.inside
for module in pkgutil.walk_packages(belljar.inside.__path__, "belljar.inside."):
    if not module.name.endswith(".sitecustomize"):  # it is the start of a zygote, and does not return
        importlib.import_module(module.name)
print(json.dumps([module.__file__ for module in sys.modules.values() if getattr(module, "__file__", None)]))
"""


def prepare(state_dir: Path) -> Path:
    """The directory to mount, made at first use and whenever this Python has changed. May take a second.

    Raises:
        SandboxFault: it cannot be made.
    """
    interpreter = Path(sys.executable).resolve()
    library = Path(os.__file__).resolve().parent
    parent = state_dir.resolve() / "lent"
    place = parent / _fingerprint(interpreter, library)
    if place.is_dir():
        return place
    parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(prefix=".making-", dir=parent))
    try:
        _lay_out(making, interpreter, library)
        making.chmod(0o755)
        with contextlib.suppress(OSError):  # another process was faster
            making.rename(place)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxFault(f"this Python cannot be mounted into containers: {error}") from error
    finally:
        shutil.rmtree(making, ignore_errors=True)
    return place


def _fingerprint(interpreter: Path, library: Path) -> str:
    facts = [path.stat() for path in (interpreter, library / "os.py", _loader_of(interpreter))]
    key = (_LAYOUT, sys.version, str(interpreter), *((each.st_size, each.st_mtime_ns) for each in facts))
    return hashlib.sha256(repr(key).encode()).hexdigest()[:16]


def _lay_out(place: Path, interpreter: Path, library: Path) -> None:
    loader = _loader_of(interpreter)
    sleep = Path(shutil.which("sleep", path="/usr/bin:/bin") or "/usr/bin/sleep")
    for directory in ("bin", host_python.LIBRARIES):
        (place / directory).mkdir()
    for source, name in ((loader, host_python.LOADER), (interpreter, host_python.PYTHON), (sleep, host_python.SLEEP)):
        shutil.copy2(source, place / name)
    (place / host_python.EMPTY).touch()
    loaded = map(Path, json.loads(_output_of(interpreter, "-I", "-S", "-c", _LOOK, _PACKAGE.parent)))
    modules = {path.relative_to(library) for path in loaded if path.is_relative_to(library)}
    _copy_modules(library, place / host_python.LIBRARIES / library.name, modules)
    binaries = [interpreter, sleep, *(library / path for path in modules if path.suffix == ".so")]
    for name, path in {pair for binary in binaries for pair in _libraries_of(loader, binary)}:
        shutil.copy2(path, place / host_python.LIBRARIES / name)


def _copy_modules(library: Path, own: Path, modules: set[Path]) -> None:
    """Copy packages as a whole, every module that is a single file, and those in C that are used."""
    own.mkdir()
    for package in {path.parts[0] for path in modules if len(path.parts) > 1} - {"lib-dynload"}:
        shutil.copytree(library / package, own / package, ignore=shutil.ignore_patterns("test", "tests", "*.opt-*"))
    in_c = [library / path for path in modules if path.suffix == ".so"]
    compiled = (library / "__pycache__").glob(f"*.{sys.implementation.cache_tag}.pyc")
    for folder, paths in ((".", library.glob("*.py")), ("__pycache__", compiled), ("lib-dynload", in_c)):
        (own / folder).mkdir(exist_ok=True)
        for path in paths:
            shutil.copy2(path, own / folder)


def _loader_of(binary: Path) -> Path:
    """The dynamic loader: the file that an ELF binary names as its interpreter."""
    with binary.open("rb") as file:
        head = file.read(64)
        if head[:5] != b"\x7fELF\x02":
            raise SandboxFault(f"{binary} is no 64-bit ELF program, and cannot be mounted into containers")
        offset, size, count = struct.unpack_from("<Q", head, 32)[0], *struct.unpack_from("<HH", head, 54)
        for number in range(count):
            file.seek(offset + number * size)
            kind, _, start, _, _, length = struct.unpack("<IIQQQQ", file.read(40))
            if kind == _PT_INTERP:
                file.seek(start)
                return Path(os.fsdecode(file.read(length).rstrip(b"\0"))).resolve()
    raise SandboxFault(f"{binary} is linked statically, and cannot be mounted into containers")


def _libraries_of(loader: Path, binary: Path) -> list[tuple[str, str]]:
    """The names and paths of the shared libraries that a binary needs."""
    words = [line.split() for line in _output_of(loader, "--list", binary).splitlines()]
    return [(each[0], each[2]) for each in words if len(each) > 2 and each[1] == "=>" and "/" not in each[0]]


def _output_of(*command: str | Path) -> str:
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False, env={})
    if answer.returncode != 0:
        raise ValueError(f"{command[0]} ended with {answer.returncode}: {answer.stderr.strip()[-300:]}")
    return answer.stdout
