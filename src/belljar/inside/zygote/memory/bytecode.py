"""Our own modules compiled by a fork of the warm process, so that it never runs a compiler itself.

A compiler takes a megabyte or two, piece by piece, and leaves it full of holes. A process that forks for every program
would have all of that copied, page table entry by page table entry, again and again.
"""

from __future__ import annotations

import marshal
import os


def compile_elsewhere(source: bytes, path: str) -> bytes:
    """The module's code as `marshal` writes it. Where a fork cannot make it, this process does."""
    reads, writes = os.pipe()
    compiler = os.fork()
    if compiler == 0:
        try:
            with open(writes, "wb") as file:
                file.write(_compile(source, path))
        finally:
            os._exit(0)
    os.close(writes)
    with open(reads, "rb") as file:
        compiled = file.read()
    os.waitpid(compiler, 0)
    return compiled or _compile(source, path)


def _compile(source: bytes, path: str) -> bytes:
    return marshal.dumps(compile(source, path, "exec", dont_inherit=True))
