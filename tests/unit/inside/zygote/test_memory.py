"""Rearranging the zygote's memory must not change its content."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_LIBRARIES = """
import ctypes, hashlib, json, socket
from belljar.inside.zygote.memory import huge_pages as pages

def read():
    content = [ctypes.string_at(start, end - start) for start, end, _ in before]
    return [hashlib.sha256(each).hexdigest() for each in content]

def count():
    with open("/proc/self/maps") as file:
        return sum(1 for _ in file)

before = list(pages._libraries())
mappings, digests = count(), read()
pages.share_libraries()
pages.share_heap()
assert len(before) > 5, before
assert read() == digests
assert count() < mappings, (count(), mappings)
assert json.loads(json.dumps({"sum": sum(range(1000))})) == {"sum": 499500}
print("unchanged")
"""

_NO_HOLES = """
from belljar.inside.zygote.memory import heap_layout as heap

holes = [bytes(200) for _ in range(5000)]
del holes[::7]
heap.fill_holes()
made = [bytes(200) for _ in range(12)]
steps = {id(later) - id(earlier) for earlier, later in zip(made, made[1:])}
print(steps == {240})
"""

_GATHERED = """
import types
from belljar.inside.zygote.memory import heap_layout as heap

import os, struct
from os import getpid

NUMBER, TEXT, TUPLE, LIST = 123456, "some text", (1, b"bytes", (2.5, "inner")), [1]
pack, has, build = struct.Struct("=i").pack, {1, 2}.issuperset, type("Class", (), {"method": classmethod(len)}).method
def function(argument, default=77777):
    return NUMBER + argument + default, TEXT + "constant", TUPLE, LIST, None, True, len(TEXT), helper()
def helper():
    return getpid(), pack(7), has([1]), build.__name__

before, result, kept, old = (NUMBER, TEXT, getpid, pack, has), function(1), LIST, (function, helper)
heap.gather([function, helper])
print(function(1) == result == old[0](1), LIST is kept, os.getpid is before[2])
print([new is not old for new, old in zip((NUMBER, TEXT, getpid, pack, has, function, helper), before + old)])
"""

_TOUCHED = """
import mmap, os, struct
from belljar.inside.zygote.memory import touched_pages as touched

page = mmap.PAGESIZE
memory = mmap.mmap(-1, 64 * page, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
if hasattr(mmap, "MADV_NOHUGEPAGE"):
    memory.madvise(mmap.MADV_NOHUGEPAGE)
for number in range(64):
    memory[number * page] = 1
import ctypes
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
said, says = os.pipe()
waits, answers = os.pipe()
pid = os.fork()
if pid == 0:
    os.close(answers)
    for number in (3, 10, 11, 12, 40):
        memory[number * page] = 2
    os.write(says, b".")
    os.read(waits, 1)
    os._exit(0)
looker = os.fork()
if looker == 0:
    os.read(said, 1)
    ranges = struct.iter_unpack("=QQ", touched.find(pid))
    ours = [((at - start) // page, size // page) for at, size in ranges if start <= at < start + 64 * page]
    print(ours == [(3, 1), (10, 3), (40, 1)], ours, flush=True)
    os._exit(0)
os.waitpid(looker, 0)
os.close(answers)
os.waitpid(pid, 0)
"""

_BYTECODE = """
import marshal, sys
from belljar.inside.zygote.memory.bytecode import compile_elsewhere

source, path = b"def function():\\n    return [1, 'two']\\n", "/somewhere/module.py"
namespace = {}
exec(marshal.loads(compile_elsewhere(source, path)), namespace)
print(namespace["function"](), namespace["function"].__code__.co_filename)
try:
    compile_elsewhere(b"no Python", path)
except SyntaxError as error:
    print(error.filename)
"""


def _run(sources: Path, code: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(sources)}, capture_output=True, text=True, timeout=60
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.strip()


def test_libraries_have_fewer_mappings_and_the_same_content(sources: Path) -> None:
    assert _run(sources, _LIBRARIES) == "unchanged"


def test_objects_lie_side_by_side_once_the_holes_are_filled(sources: Path) -> None:
    assert _run(sources, _NO_HOLES) == "True"


def test_gathered_functions_compute_the_same_from_new_objects(sources: Path) -> None:
    assert _run(sources, _GATHERED).splitlines() == ["True True True", str([True] * 7)]


def test_pages_that_a_fork_has_written_to_are_found(sources: Path) -> None:
    assert _run(sources, _TOUCHED).startswith("True")


def test_a_module_is_compiled_by_a_fork(sources: Path) -> None:
    assert _run(sources, _BYTECODE).splitlines() == ["[1, 'two'] /somewhere/module.py", "/somewhere/module.py"]
