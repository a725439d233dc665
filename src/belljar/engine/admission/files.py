"""The files of a request, and the globs of the files to return."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from belljar.contract.artifacts import GLOB_CHARACTERS_MAX, GLOB_COUNT_MAX, GLOBS_CHARACTERS_MAX
from belljar.contract.errors import InvalidExecution
from belljar.contract.files import File, check_relative_path
from belljar.contract.request import InlineFile
from belljar.engine.admission.messages import measure, measure_word, sequence, show, too_large, wrong_type
from belljar.settings import Settings


def read_files(settings: Settings, files: object, source: str) -> tuple[File, ...]:
    """The files of a program, which must be able to exist beside each other and beside its `source`.

    Raises:
        CallerError: one of them cannot be accepted.
    """
    given = _as_files(files)
    if len(given) > settings.request.file_count:
        raise too_large("files", len(given), settings.request.file_count, "pack them into an archive", unit="files")
    size = sum(len(file.content) for file in given)
    if size > settings.request.files_bytes:
        raise too_large("files together", size, settings.request.files_bytes, "send less")
    _check_tree([file.path for file in given], source)
    return given


def _as_files(files: object) -> tuple[File, ...]:
    if isinstance(files, Mapping):
        return tuple(_as_file(path, content) for path, content in files.items())
    if isinstance(files, (str, bytes)) or not isinstance(files, Iterable):
        raise wrong_type("files", "a mapping of paths to contents, or a sequence of File", files)
    found = []
    for number, given in enumerate(files):
        file = given.as_file(f"files[{number}]") if isinstance(given, InlineFile) else given
        if not isinstance(file, File):
            raise wrong_type("each of files", "a File", file)
        found.append(_as_file(file.path, file.content))
    return tuple(found)


def _as_file(path: object, content: object) -> File:
    if not isinstance(path, str):
        raise wrong_type("a path in files", "a string", path)
    return File(path=check_relative_path(path), content=_read_content(path, content))


def _read_content(path: str, content: object) -> bytes:
    if isinstance(content, str):
        measure(f"files[{show(path)}]", content)
        return content.encode()
    if not isinstance(content, (bytes, bytearray, memoryview)):
        raise wrong_type(f"files[{show(path)}]", "a string or bytes", content)
    return bytes(content)


def _check_tree(paths: list[str], source: str) -> None:
    """Every path must be able to exist beside all others: none twice, none a directory of another."""
    taken = {source}
    for path in paths:
        if path == source:
            raise InvalidExecution(
                f"files[{show(path)}] is reserved for the program itself; choose another name", field="files"
            )
        if path in taken:
            raise InvalidExecution(f"files names {show(path)} twice; send it once", field="files")
        taken.add(path)
    for path in paths:
        cut = path.find("/")
        while cut >= 0:
            if path[:cut] in taken:
                raise InvalidExecution(
                    f"files needs {show(path[:cut])} as a file and as the directory of {show(path)}; rename one",
                    field="files",
                )
            cut = path.find("/", cut + 1)


def read_globs(artifacts: Sequence[str]) -> tuple[str, ...]:
    """The globs of the files to return.

    Raises:
        CallerError: one of them makes no sense.
    """
    globs = tuple(sequence("artifacts", artifacts))
    if len(globs) > GLOB_COUNT_MAX:
        raise too_large("artifacts", len(globs), GLOB_COUNT_MAX, "use wider patterns", unit="patterns")
    for at, glob in enumerate(globs):
        _check_glob(f"artifacts[{at}]", glob)
    total = sum(map(len, globs))
    if total > GLOBS_CHARACTERS_MAX:
        raise too_large("artifacts together", total, GLOBS_CHARACTERS_MAX, "use wider patterns", unit="characters")
    return globs


def _check_glob(field: str, glob: str) -> None:
    measure_word(field, glob)
    if len(glob) > GLOB_CHARACTERS_MAX:
        raise too_large(field, len(glob), GLOB_CHARACTERS_MAX, "use a shorter pattern", unit="characters")
    parts = glob.split("/")
    if glob.startswith("/") or ".." in parts:
        raise InvalidExecution(
            f"{field} {show(glob)} must be relative to the work directory, without '..'", field="artifacts"
        )
    if not any(part not in ("", ".") for part in parts):
        raise InvalidExecution(f"{field} names no file; write a pattern such as '*.png' or 'out/**'", field="artifacts")
