"""CPython's own tests in a jail: the fastest of those that `make cpython` runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from belljar.environments.store import Environments
from belljar.settings import Settings


@pytest.mark.timeout(300)
def test_cpythons_own_tests_fail_in_the_jail_only_where_they_must(
    settings: Settings, repository: Path, sources: Path
) -> None:
    python = Environments(settings.state_dir, settings.environments).require("default").python
    if subprocess.run([str(python), "-c", "import test.test_select"], capture_output=True, check=False).returncode:
        pytest.skip(f"NOT TRIED: {python} comes without its tests; on Debian: apt-get install libpython3-testsuite")
    done = subprocess.run(
        [sys.executable, "bench/cpython.py", "--quick"],
        cwd=repository,
        env={**os.environ, "PYTHONPATH": str(sources)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
