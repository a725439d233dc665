"""A program at its limit of processes takes none from other programs, whichever mechanism counts them."""

from __future__ import annotations

from typing import Any

import pytest

BOMB = """
import os, signal
children = 0
try:
    while children < 3000:
        if os.fork() == 0:
            signal.pause()
        children += 1
except OSError:
    pass
print('forked', children, flush=True)
signal.pause()
"""

FORKS = """
import os, signal
children = []
for _ in range(30):
    child = os.fork()
    if child == 0:
        signal.pause()
    children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print('free')
"""


def test_a_plain_users_program_has_no_more_processes_than_its_limit(plain_box: Any) -> None:
    assert "forked 63\n" in plain_box.run(BOMB, timeout=5).stdout  # the program itself is one of 64
    with plain_box.hold(BOMB, "forked 63\n", timeout=60), plain_box.hold(BOMB, "forked 63\n", timeout=60):
        for _ in range(3):
            outcome = plain_box.run(FORKS)
            assert (outcome.status, outcome.stdout) == ("ok", "free\n"), outcome


@pytest.mark.parametrize("processes", [5, 100])
def test_every_program_gets_its_own_processes(plain_box: Any, processes: int) -> None:
    assert plain_box.run(BOMB, timeout=5, limits={"processes": processes}).stdout == f"forked {processes - 1}\n"
