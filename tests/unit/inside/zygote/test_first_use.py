"""The zygote uses libraries once before the first program, and a program notices only that it is faster."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import belljar
from belljar.inside.zygote.memory import first_use
from belljar.settings import Settings

#: Threads are not checked here, because the zygote itself refuses them.
_TRACES = """
import os, sys, warnings
import numpy, pandas, matplotlib.pyplot, PIL.Image
import first_use

def seen():
    registries = [name for name, module in sys.modules.items() if getattr(module, "__warningregistry__", None)]
    numbers = str(numpy.random.get_state()), matplotlib.pyplot.get_fignums(), len(os.listdir("/proc/self/task"))
    return registries, os.listdir("/proc/self/fd"), os.listdir("."), numbers, warnings.filters[:], dict(os.environ)

before = seen()
first_use.try_out([*first_use.PROGRAMS, "no_such_module"])
print(seen() == before, "pandas.io.formats.string" in sys.modules)
"""


@pytest.mark.parametrize("name", first_use.PROGRAMS)
def test_each_program_works_with_what_is_installed(box: belljar.Sandbox, name: str) -> None:
    """The zygote ignores errors of these programs; this test does not."""
    outcome = box.run(f"{first_use.PROGRAMS[name]}\nprint('done')")
    assert (outcome.stdout, outcome.stderr) == ("done\n", "")


def test_first_use_leaves_no_trace(settings: Settings, tmp_path: Path) -> None:
    python = settings.state_dir / "environments" / "default" / "bin" / "python"
    code = f"import sys\nsys.path.append({str(Path(first_use.__file__).parent)!r})\n{_TRACES}"
    environ = {"MPLCONFIGDIR": str(tmp_path), "OPENBLAS_NUM_THREADS": "1"}
    finished = subprocess.run(
        [python, "-B", "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120
    )
    assert finished.stdout == "True True\n", finished.stderr


def test_a_program_finds_libraries_that_were_used(box: belljar.Sandbox) -> None:
    code = "import sys\nbefore = 'pandas.io.formats.string' in sys.modules\nimport pandas\nprint(before)"
    assert box.run(code).stdout == "True\n"
