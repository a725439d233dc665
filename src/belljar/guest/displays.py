"""Pictures a program shows: matplotlib figures and PIL images, sent to the host as PNG.

This module is matplotlib's back end inside the jail (`MPLBACKEND=module://_belljar_displays`), loaded in every warm
process; it imports matplotlib only once a program has. What it sends is untrusted payload to the host, capped and
checked there: a program can forge pictures, and nothing else.
"""

from __future__ import annotations

import io
import os
import sys
from typing import Any

BACKEND_NAME = "_belljar_displays"
_pipe = -1  # a pipe, not a socket: over a socket a program could send the host its descriptors


def register() -> None:
    """Make this module findable as a matplotlib back end, and known to PIL when that is loaded."""
    sys.modules[BACKEND_NAME] = sys.modules[__name__]
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
    """From now on pictures have somewhere to go."""
    global _pipe
    _pipe = descriptor


def send(mime: str, content: bytes) -> None:
    """Send one picture: the length of its type, its type, its own length, itself."""
    if _pipe < 0:
        return
    head = bytes([len(mime)]) + mime.encode() + len(content).to_bytes(4, "big")
    view = memoryview(head + content)
    try:
        while view:
            view = view[os.write(_pipe, view) :]
    except OSError:
        pass  # the host has had enough


def show_open_figures() -> None:
    """Send what is still open, at the end of the program."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if _pipe >= 0 and pyplot is not None and hasattr(pyplot, "get_fignums"):
        try:
            _show_figures(pyplot)
        except Exception as error:  # noqa: BLE001  (the program's own figure, whatever is wrong with it)
            print(f"an open figure could not be drawn: {error!r}", file=sys.stderr)


def _show_figures(pyplot: Any) -> None:
    for number in pyplot.get_fignums():
        buffer = io.BytesIO()
        pyplot.figure(number).savefig(buffer, format="png")
        pyplot.close(number)
        send("image/png", buffer.getvalue())


def __getattr__(name: str) -> Any:
    """matplotlib's back end interface, made when it first asks; it then reads the module's dictionary."""
    if name not in ("FigureCanvas", "FigureManager"):
        raise AttributeError(name)
    from matplotlib.backend_bases import FigureManagerBase
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    class FigureManager(FigureManagerBase):
        @classmethod
        def pyplot_show(cls, *, block: Any = None) -> None:
            from matplotlib import pyplot

            _show_figures(pyplot)

    class FigureCanvas(FigureCanvasAgg):
        manager_class = FigureManager

    globals().update(FigureCanvas=FigureCanvas, FigureManager=FigureManager)
    return globals()[name]
