"""Send what a program displays to the host: matplotlib figures and PIL images as PNG, and other forms in sessions.

This module is matplotlib's back end inside the jail (`MPLBACKEND=module://_belljar_displays`). Every zygote loads it;
it imports matplotlib only after a program has. To the host its messages are untrusted, limited in size and checked: a
program can forge displays, and nothing else.
"""

from __future__ import annotations

import io
import itertools
import os
import select
import struct
import sys
import warnings
import weakref
from typing import Any

BACKEND_NAME = "_belljar_displays"
_PIECE = struct.Struct("=QIH")  # number of the display, its total bytes, bytes of this piece
_numbers = itertools.count(1)
_shown: Any = weakref.WeakKeyDictionary()  # figures that were displayed and stay open, with a hash of their content
_owner = 0  # the process whose open figures are displayed at its end
_pipe = -1  # a pipe, because over a socket a program could also send descriptors to the host


def register_back_end() -> None:
    """Let matplotlib find this module as its back end; call it before matplotlib is imported."""
    sys.modules[BACKEND_NAME] = sys.modules[__name__]


def register_viewer() -> None:
    """Let PIL display its images through this module; call it after PIL has been imported."""
    if "PIL.Image" in sys.modules:
        from PIL import ImageShow

        class Viewer(ImageShow.Viewer):
            def show_image(self, image: Any, **options: Any) -> int:
                buffer = io.BytesIO()
                image.save(buffer, "PNG")
                send("image/png", buffer.getvalue())
                return 1

        ImageShow.register(Viewer, 0)


def open_pipe(descriptor: int) -> None:
    """Send displays of this process to `descriptor` from now on."""
    global _pipe, _owner
    _pipe, _owner = descriptor, os.getpid()


def close_pipe() -> None:
    """Drop displays until a pipe is opened again."""
    global _pipe
    descriptor, _pipe = _pipe, -1
    try:
        os.close(descriptor)
    except OSError:
        pass  # the program has closed it


def note_shown(figure: Any, content: bytes) -> None:
    """Record that a figure has been displayed in another way, with this content."""
    _shown[figure] = hash(content)


def send(mime: str, content: bytes) -> None:
    """Send one display in pieces small enough that writes of other threads and processes do not mix with them."""
    if _pipe < 0 or not content:
        return
    number = os.getpid() << 32 | next(_numbers)
    room = select.PIPE_BUF - _PIECE.size
    try:
        _write(number, len(content), mime.encode())
        for start in range(0, len(content), room):
            _write(number, len(content), content[start : start + room])
    except OSError:
        pass  # the host has closed the pipe


def _write(number: int, size: int, piece: bytes) -> None:
    os.write(_pipe, _PIECE.pack(number, size, len(piece)) + piece)


def show_open_figures() -> None:
    """Send the open figures that were not displayed yet, at the end of the program; does nothing in a fork of it."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if _pipe >= 0 and _owner == os.getpid() and hasattr(pyplot, "get_fignums"):
        try:
            _show_figures(pyplot, closes=True)
        except Exception as error:  # noqa: BLE001  (drawing a program's figure may raise anything)
            print(f"an open figure could not be drawn: {error!r}", file=sys.stderr)


def _show_figures(pyplot: Any, closes: bool) -> None:
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        content = _draw(figure)
        if _shown.get(figure) != hash(content):
            send("image/png", content)
        if closes:
            pyplot.close(number)
        else:
            _shown[figure] = hash(content)


def _draw(figure: Any) -> bytes:
    """Draw a figure as PNG; warnings name the line of the program that displays it, if it still runs."""
    buffer = io.BytesIO()
    with warnings.catch_warnings(record=True) as caught:
        figure.savefig(buffer, format="png")
    frame: Any = sys._getframe()
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("matplotlib", "belljar"):
        frame = frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("sys", 1)
    for each in caught or ():
        warnings.warn_explicit(each.message, each.category, *place)
    return buffer.getvalue()


def __getattr__(name: str) -> Any:
    """Create the classes of matplotlib's back-end interface when matplotlib first looks them up."""
    if name not in ("FigureCanvas", "FigureManager"):
        raise AttributeError(name)
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureManager(FigureManagerBase):
        @classmethod
        def pyplot_show(cls, *, block: Any = None) -> None:
            from matplotlib import pyplot

            _show_figures(pyplot, closes=block is not False)

    class FigureCanvas(FigureCanvasAgg):
        manager_class = FigureManager

    globals().update(FigureCanvas=FigureCanvas, FigureManager=FigureManager)
    return globals()[name]
