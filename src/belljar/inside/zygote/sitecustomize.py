"""The start of a zygote: the interpreter imports this module by itself, before it looks at the program.

The interpreter then asks every path hook whether /work/main.py is an archive to run. The zygote waits inside such a
hook: there is no Python frame below it, so a guest that answers "no" has nothing to unwind, and the interpreter goes on
to run the program.

The ImportError at the end makes `site` believe that there is no sitecustomize, and the module is dropped.
"""

import sys
from typing import Any

_always_loaded = frozenset(sys.modules)

import marshal  # noqa: E402  (these imports must not be in `_always_loaded`)
import os  # noqa: E402
from importlib import import_module  # noqa: E402
from importlib.machinery import SourceFileLoader  # noqa: E402

from belljar.inside.zygote.memory.bytecode import compile_elsewhere  # noqa: E402


def _load_from_elsewhere(self: SourceFileLoader, source: Any, path: Any, **_: Any) -> Any:
    return marshal.loads(compile_elsewhere(source, path, 2))  # docstrings would lie between what guests touch


SourceFileLoader.source_to_code = _load_from_elsewhere  # type: ignore[assignment, method-assign]
with open(os.path.join(os.path.dirname(__file__), "serving_module"), "rb") as _file:  # see `warden.own_code`
    serve = import_module(_file.read().decode()).serve

del SourceFileLoader.source_to_code  # restores the inherited method for programs


def _wait_for_a_program(path: str) -> Any:
    if path == "/work/main.py":
        sys.path_hooks.pop()  # removes this hook, so that a program finds the usual ones
        serve(_always_loaded)
    raise ImportError


sys.path_hooks.append(_wait_for_a_program)
raise ImportError("no sitecustomize", name="sitecustomize")
