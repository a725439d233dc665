"""Where a zygote starts: the interpreter imports this by itself, before it looks at the program.

It then asks every path hook whether /work/main.py is an archive to be run. The zygote waits inside that question:
there is no Python frame below it, so a guest that answers "no" has nothing to unwind and the interpreter goes on to
run the program.

The first ImportError is taken by `site` for "there is no sitecustomize": the module is forgotten.
"""

import sys
from typing import Any

_always_loaded = frozenset(sys.modules)

import marshal  # noqa: E402  (after the look at what was there without us, as all that follows)
import os  # noqa: E402
from importlib import import_module  # noqa: E402
from importlib.machinery import SourceFileLoader  # noqa: E402

from belljar.inside.zygote.memory.bytecode import compile_elsewhere  # noqa: E402


def _load_from_elsewhere(self: SourceFileLoader, source: Any, path: Any, **_: Any) -> Any:
    return marshal.loads(compile_elsewhere(source, path))


SourceFileLoader.source_to_code = _load_from_elsewhere  # type: ignore[assignment, method-assign]
serve = import_module(os.environ["BELLJAR_ZYGOTE"]).serve  # which warm process this is: `WARMING` of the host

del SourceFileLoader.source_to_code  # a program finds the one that it inherits


def _wait_for_a_program(path: str) -> Any:
    if path == "/work/main.py":
        sys.path_hooks.pop()  # this one; a program finds the hooks as they should be
        serve(_always_loaded)
    raise ImportError


sys.path_hooks.append(_wait_for_a_program)
raise ImportError("no sitecustomize", name="sitecustomize")
