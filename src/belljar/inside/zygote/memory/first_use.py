"""Use popular libraries once in the zygote, so that guests do not pay for the work that is done on first use.

Importing a library does not do everything: it looks up, compiles and caches more when it is first used, and every guest
would repeat that. So the zygote uses the most popular libraries in the way most programs do. It leaves nothing that a
program could see: no file, no thread, no descriptor, no warning, no number taken from a random generator.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable

_TIMES = 3  # the interpreter specializes code that has run a few times
PROGRAMS = {
    "numpy": """
import numpy
numbers = numpy.arange(6.0).reshape(2, 3)
str(numbers), str(numbers.mean(axis=0)), str(numbers @ numbers.T), str(numpy.sort(numbers[numbers > 1])[::-1])
""",
    "pandas": """
import pandas
frame = pandas.DataFrame({"name": ["a", "b", "a"], "count": [1, 2, 3], "share": [0.5, 1.5, 2.5]})
str(frame), str(frame.describe()), str(frame.groupby("name")["count"].sum()), str(frame.sort_values("share").head(2))
str(frame[frame["share"] > 1]), str(frame["share"].mean())
""",
    # Not drawn: drawing keeps font files open, and a guest inherits no open files.
    "matplotlib.pyplot": """
import matplotlib.backends.backend_agg, matplotlib.figure
figure = matplotlib.figure.Figure()
axes = figure.add_subplot()
axes.plot([1, 2, 3], [4, 5, 6], label="a"), axes.bar([1, 2], [3, 4]), axes.set_title("b"), axes.legend()
""",
    "PIL.Image": """
import io
from PIL import Image, ImageDraw
image = Image.new("RGB", (8, 8), "white")
ImageDraw.Draw(image).line((0, 0, 7, 7), fill="red")
image.resize((4, 4)).save(io.BytesIO(), "PNG")
""",
}


def try_out(imports: Iterable[str]) -> None:
    """Run the sample for each imported module; one that fails with the installed version is skipped."""
    for name in imports:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            for _ in range(_TIMES):
                exec(PROGRAMS.get(name, ""), {})
