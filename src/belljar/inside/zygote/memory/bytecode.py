"""Compile Belljar's modules in a fork of the zygote, so that the zygote never runs the compiler itself.

The compiler allocates one or two megabytes piece by piece and leaves them full of holes. A fork copies the page table
entries of that memory, and the zygote forks for every program.
"""

from __future__ import annotations

import marshal
import os


def compile_elsewhere(source: bytes, path: str, optimize: int = -1) -> bytes:
    """Return the module's code in the format of `marshal`; if the fork fails, this process compiles it.

    `optimize` is that of `compile`: 2 leaves docstrings out.
    """
    reads, writes = os.pipe()
    compiler = os.fork()
    if compiler == 0:
        try:
            with open(writes, "wb") as file:
                file.write(_compile(source, path, optimize))
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as file:
        compiled = file.read()
    os.waitpid(compiler, 0)
    return compiled or _compile(source, path, optimize)


def _compile(source: bytes, path: str, optimize: int) -> bytes:
    return marshal.dumps(compile(source, path, "exec", dont_inherit=True, optimize=optimize))
