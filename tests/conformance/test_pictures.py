"""Pictures that a program shows arrive as PNG; forged pictures are harmless."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest

import belljar
from belljar.contract.execution import Display, Outcome

PLOT = "import matplotlib.pyplot as plt\n"
IMAGE = "import os\nfrom PIL import Image\n"
NOISE = "Image.frombytes('RGB', (200, 200), os.urandom(120_000)).show()"  # incompressible noise, 120 kB
USUAL = (640, 480)


def size_of(display: Display) -> tuple[int, int]:
    """Width and height of a PNG, after checking every checksum and the size of the pixel data."""
    assert display.mime == "image/png"
    content = display.content
    assert content.startswith(b"\x89PNG\r\n\x1a\n")
    at, pixels, width, height, row_bytes = 8, b"", 0, 0, 0
    while at < len(content):
        length, kind = struct.unpack_from(">I4s", content, at)
        body = content[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", content, at + 8 + length)[0] == zlib.crc32(kind + body)
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack_from(">IIBB", body)
            row_bytes = 1 + (width * depth * {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[colour] + 7) // 8
        elif kind == b"IDAT":
            pixels += body
        at += 12 + length
    assert len(zlib.decompress(pixels)) == row_bytes * height
    return width, height


def sizes(outcome: Outcome) -> list[tuple[int, int]]:
    return [size_of(display) for display in outcome.displays]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param(PLOT + "plt.plot([1, 2])", [USUAL], id="figure_left_open"),
        pytest.param(PLOT + "plt.plot([1, 2]); plt.show()", [USUAL], id="show"),
        pytest.param(PLOT + "for n in range(3):\n    plt.plot([n]); plt.show()", [USUAL] * 3, id="show_three_times"),
        pytest.param(PLOT + "plt.show(); plt.figure(figsize=(2, 1)); plt.figure()", [(200, 100), USUAL], id="two_open"),
        pytest.param(PLOT + "plt.plot([1]); plt.show(); plt.figure(figsize=(1, 1))", [USUAL, (100, 100)], id="both"),
        pytest.param(PLOT + "plt.plot([1]); plt.close()", [], id="closed"),
        pytest.param(PLOT + "plt.show()", [], id="nothing_to_show"),
        pytest.param(PLOT + "plt.figure(figsize=(40, 30), dpi=100); plt.plot([1])", [(4000, 3000)], id="large"),
        pytest.param("from pylab import *\nplot([1]); show()", [USUAL], id="pylab"),
        pytest.param("import pandas\npandas.DataFrame({'a': [1, 2]}).plot()", [USUAL], id="pandas"),
        pytest.param(
            "import matplotlib\nmatplotlib.use('Agg')\n" + PLOT + "plt.plot([1])", [USUAL], id="back_end_chosen"
        ),
        pytest.param(IMAGE + "Image.new('RGB', (30, 20), 'red').show()", [(30, 20)], id="image"),
        pytest.param(
            IMAGE + "for mode in ('1', 'L', 'LA', 'P', 'RGBA', 'CMYK', 'YCbCr', 'LAB', 'HSV', 'I', 'F', 'I;16'):\n"
            "    Image.new(mode, (3, 2)).show()",
            [(3, 2)] * 12,
            id="image_of_every_mode",
        ),
        pytest.param(
            PLOT + "import threading\nthread = threading.Thread(target=lambda: (plt.plot([1]), plt.show()))\n"
            "thread.start(); thread.join()",
            [USUAL],
            id="drawn_in_a_thread",
        ),
        pytest.param(
            PLOT + "import multiprocessing\ndef draw():\n    plt.plot([1]); plt.show()\n"
            "child = multiprocessing.get_context('fork').Process(target=draw); child.start(); child.join()",
            [USUAL],
            id="drawn_in_a_forked_child",
        ),
        pytest.param(
            PLOT + "import io, sys\nsys.stdout = io.StringIO()\nplt.plot([1]); plt.show()",
            [USUAL],
            id="stdout_replaced",
        ),
        pytest.param(PLOT + "import os\nos.close(3)\nplt.plot([1]); plt.show()", [], id="descriptor_closed"),
    ],
)
def test_shown_pictures_arrive(box: belljar.Sandbox, code: str, expected: list[tuple[int, int]]) -> None:
    outcome = box.run(code, timeout=60)
    assert (outcome.status, outcome.stdout, outcome.stderr) == ("ok", "", "")
    assert sizes(outcome) == expected


@pytest.mark.parametrize(
    ("end", "status", "exit_code"),
    [
        pytest.param("1 / 0", "failed", 1, id="exception"),
        pytest.param("import sys; sys.exit(3)", "failed", 3, id="exit_code"),
        pytest.param("raise KeyboardInterrupt", "crashed", None, id="interrupt"),
        pytest.param("import atexit; atexit.register(lambda: 1 / 0)", "ok", 0, id="broken_exit_function"),
    ],
)
def test_figures_left_open_are_shown_however_the_program_ends(
    box: belljar.Sandbox, end: str, status: str, exit_code: int | None
) -> None:
    outcome = box.run(f"{PLOT}plt.plot([1])\n{end}")
    assert (outcome.status, outcome.exit_code) == (status, exit_code)
    assert sizes(outcome) == [USUAL]


@pytest.mark.parametrize("end", ["import os; os._exit(0)", "import os; os.kill(os.getpid(), 9)", "while True: pass"])
def test_open_figures_are_lost_if_the_program_is_killed(box: belljar.Sandbox, end: str) -> None:
    limits = {"wall_seconds": 100, "cpu_seconds": 5}  # CPU time, which does not depend on a busy machine
    outcome = box.run(f"{PLOT}plt.plot([1]); plt.show()\nplt.plot([2])\n{end}", limits=limits)
    assert sizes(outcome) == [USUAL]


def test_a_figure_that_cannot_be_drawn_is_reported(box: belljar.Sandbox) -> None:
    outcome = box.run(PLOT + "plt.title('$\\\\bad{$')")
    assert (outcome.status, outcome.displays) == ("ok", ())
    assert "could not be drawn" in outcome.stderr


def test_a_saved_figure_is_an_artifact(box: belljar.Sandbox) -> None:
    code = (
        PLOT + "plt.plot([1]); plt.savefig('plot.png'); plt.savefig('plot.svg'); plt.savefig('plot.pdf'); plt.close()"
    )
    outcome = box.run(code, artifacts=["plot.*"], timeout=60)
    found = {file.path: file.content for file in outcome.artifacts}
    assert (outcome.status, outcome.displays, sorted(found)) == ("ok", (), ["plot.pdf", "plot.png", "plot.svg"])
    assert size_of(Display(mime="image/png", content=found["plot.png"])) == USUAL


def test_pictures_are_streamed_when_they_are_shown(box: belljar.Sandbox) -> None:
    code = PLOT + "print('before', flush=True); plt.plot([1]); plt.show(); input()"
    events = box.stream(code, timeout=30, stdin="")
    kinds = [type(event).__name__ for event in events]
    assert kinds.index("Output") < kinds.index("Display") < len(kinds) - 1


# ---- too many, too large, all at once


def test_pictures_past_the_count_are_dropped(box: belljar.Sandbox) -> None:
    code = PLOT + "plt.rcParams['figure.max_open_warning'] = 0\nfor n in range(100):\n    plt.figure(figsize=(1, 1))"
    outcome = box.run(code, timeout=60)
    assert outcome.status == "ok"
    assert sizes(outcome) == [(100, 100)] * box.settings.request.display_count


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(f"for n in range(80):\n    {NOISE}", id="too_many"),
        pytest.param("Image.frombytes('RGB', (3000, 2500), os.urandom(22_500_000)).show()", id="too_large"),
        pytest.param(f"for n in range(140):\n    {NOISE}", id="too_many_and_too_large"),
    ],
)
def test_pictures_past_the_limits_do_not_stop_the_program(box: belljar.Sandbox, code: str) -> None:
    outcome = box.run(f"{IMAGE}{code}\nprint('done')", timeout=60)
    assert (outcome.status, outcome.stdout) == ("ok", "done\n")
    assert all(sizes(outcome))


@pytest.mark.parametrize(
    "code",
    [
        pytest.param(
            "import threading\nthreads = [threading.Thread(target=draw) for _ in range(8)]\n"
            "for each in threads: each.start()\nfor each in threads: each.join()",
            id="threads",
        ),
        pytest.param(
            "import multiprocessing\ncontext = multiprocessing.get_context('fork')\n"
            "children = [context.Process(target=draw) for _ in range(8)]\n"
            "for each in children: each.start()\nfor each in children: each.join()",
            id="processes",
        ),
    ],
)
def test_pictures_shown_side_by_side_all_arrive(box: belljar.Sandbox, code: str) -> None:
    """With room for all: inside gVisor, memory that processes share counts once for each of them."""
    program = f"{IMAGE}def draw():\n    for n in range(4):\n        {NOISE}\n{code}"
    outcome = box.run(program, timeout=60, memory_mb=1024)
    assert outcome.status == "ok"
    assert sizes(outcome) == [(200, 200)] * 32


@pytest.mark.parametrize(
    ("code", "given"),
    [
        pytest.param(
            "import drawing\ndrawing.draw()", {"files": {"drawing.py": PLOT + "draw = plt.figure"}}, id="module"
        ),
        pytest.param(
            "plt = __import__('importlib').import_module('matplotlib.pyplot')\nplt.figure()", {}, id="by_name"
        ),
    ],
)
def test_pictures_arrive_however_matplotlib_is_imported(box: belljar.Sandbox, code: str, given: dict[str, Any]) -> None:
    outcome = box.run(code, timeout=60, **given)
    assert outcome.status == "ok"
    assert sizes(outcome) == [USUAL]


def test_a_forked_child_does_not_show_its_parents_figures_again(box: belljar.Sandbox) -> None:
    outcome = box.run(PLOT + "import os\nplt.plot([1])\npid = os.fork()\nif pid:\n    os.waitpid(pid, 0)")
    assert sizes(outcome) == [USUAL]


@pytest.mark.parametrize("end", ["plt.show()", ""])
def test_warnings_while_drawing_name_no_file_of_belljar(box: belljar.Sandbox, end: str) -> None:
    outcome = box.run(PLOT + "plt.title('漢字')\n" + end)
    assert "missing from font" in outcome.stderr
    assert "belljar" not in outcome.stderr


def test_a_non_blocking_show_leaves_figures_open(box: belljar.Sandbox) -> None:
    code = PLOT + "plt.plot([1]); plt.show(block=False); plt.pause(0.01); print(plt.get_fignums())"
    assert box.run(code).stdout == "[1]\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("plt.figure(figsize=(1, 1)); plt.show(block=False)", [(100, 100)], id="shown_once"),
        pytest.param(
            "plt.figure(figsize=(1, 1)); plt.show(block=False); plt.close(); plt.figure(figsize=(2, 1))",
            [(100, 100), (200, 100)],
            id="another_figure_of_the_same_number",
        ),
        pytest.param(
            "figure, axes = plt.subplots(figsize=(1, 1))\nplt.pause(0.01)\naxes.plot([1, 2])",
            [(100, 100), (100, 100)],
            id="drawn_to_afterwards",
        ),
    ],
)
def test_a_figure_that_stays_open_is_shown_again_only_if_it_has_changed(
    box: belljar.Sandbox, code: str, expected: list[tuple[int, int]]
) -> None:
    assert sizes(box.run(PLOT + code)) == expected


# ---- forged pictures

#: Pictures are sent in pieces over descriptor 3. A forger must not block, since its data may never be read.
FORGER = """
import fcntl, numpy, os, stat, struct
os.set_blocking(3, False)
def forge(content):
    try:
        while content:
            content = content[os.write(3, content):]
    except OSError:
        pass
def piece(number, size, content):
    return struct.pack("=QIH", number, size, len(content)) + content
def picture(mime, size, content, number=1):
    return piece(number, size, mime) + piece(number, size, content)
"""


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param("forge(b'x')", id="one_byte"),
        pytest.param("forge(b'\\0' * 100_000)", id="zeros"),
        pytest.param("forge(b'\\xff' * 100_000)", id="ones"),
        pytest.param("forge(os.urandom(300_000))", id="noise"),
        pytest.param("forge(picture(b'image/png', 3, b'abc'))", id="a_picture"),
        pytest.param("forge(picture(b'text/html', 3, b'<b>'))", id="another_type"),
        pytest.param("forge(picture(b'../../etc/passwd', 3, b'abc'))", id="no_type"),
        pytest.param("forge(picture(b'image/\\xff\\0', 3, b'abc'))", id="type_is_no_text"),
        pytest.param("forge(picture(b'image/' + b'x' * 60_000, 3, b'abc'))", id="type_is_endless"),
        pytest.param("forge(picture(b'', 3, b'abc'))", id="type_is_missing"),
        pytest.param("forge(picture(b'image/png', 2**32 - 1, b'abc'))", id="enormous"),
        pytest.param("forge(picture(b'image/png', 0, b''))", id="empty"),
        pytest.param("forge(picture(b'image/png', 3, b'abcdef'))", id="more_than_said"),
        pytest.param("forge(picture(b'image/png', 300, b'a'))", id="less_than_said"),
        pytest.param("forge(piece(1, 9, b'image/png') + piece(1, 9, b'') * 9)", id="empty_pieces"),
        pytest.param("forge(piece(1, 3, b'image/png') + piece(1, 9, b'abc'))", id="size_changes"),
        pytest.param("forge(struct.pack('=QIH', 1, 3, 65535) + b'image/png')", id="piece_never_ends"),
        pytest.param("forge(b''.join(piece(n, 1, b'image/png') for n in range(5000)))", id="begun_and_not_ended"),
        pytest.param("forge(b''.join(piece(n, 2**22, b'image/png') for n in range(9)))", id="more_begun_than_fits"),
        pytest.param("forge(b''.join(picture(b'image/png', 3, b'abc', n) for n in range(5000)))", id="flood"),
        pytest.param("forge(picture(b'image/png', 3, b'abc', 2**64 - 1) * 2)", id="number_used_twice"),
        pytest.param('forge(b\'\\0\\0\\0\\x11{"failed": "uid"}\')', id="failure_of_the_jail"),
        pytest.param("forge(b'\\0\\0\\0\\0started')", id="a_second_start"),
        pytest.param("os.close(3)", id="hung_up"),
        pytest.param("fcntl.fcntl(3, fcntl.F_SETFL, os.O_APPEND)", id="other_flags"),
        pytest.param("os.dup2(1, 3)", id="replaced"),
        pytest.param("assert stat.S_ISFIFO(os.fstat(3).st_mode)  # no descriptors can be sent", id="a_pipe"),
    ],
)
@pytest.mark.parametrize("exit_code", [0, 7])
def test_forged_pictures_do_no_harm(box: belljar.Sandbox, forged: str, exit_code: int) -> None:
    outcome = box.run(f"{FORGER}{forged}\nprint('done')\nimport sys\nsys.exit({exit_code})", artifacts=["*.none"])
    assert (outcome.status, outcome.exit_code) == ("failed" if exit_code else "ok", exit_code)
    assert (outcome.stdout, outcome.stderr, outcome.error, outcome.artifacts) == ("done\n", "", None, ())
    assert all(len(display.content) <= 3 for display in outcome.displays)
    assert len(outcome.displays) <= box.settings.request.display_count


@pytest.mark.parametrize(
    "forged",
    [
        pytest.param("b'\\xff' * 65536", id="refused"),
        pytest.param("picture(b'image/png', 1 << 22, b'x') + piece(1, 1 << 22, b'x') * 4000", id="in_small_pieces"),
    ],
)
def test_a_flood_of_pictures_is_a_flood(box: belljar.Sandbox, forged: str) -> None:
    code = f"{FORGER}content = {forged}\nos.set_blocking(3, True)\nwhile True:\n    os.write(3, content)"
    outcome = box.run(code, timeout=60)
    assert (outcome.status, outcome.displays) == ("output_limit", ())


def test_the_run_after_a_forger_is_unharmed(box: belljar.Sandbox) -> None:
    outcomes = list(box.run_many([f"{FORGER}forge(b'[]' * 999)", PLOT + "plt.plot([1])"] * 3))
    assert [outcome.status for outcome in outcomes] == ["ok"] * 6
    assert [len(outcome.displays) for outcome in outcomes] == [0, 1] * 3
