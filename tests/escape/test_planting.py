"""The host closes unexpected descriptors of a session at once: otherwise they would escape the session's limits."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import pytest

import belljar
from belljar.contract.errors import CannotBranch
from belljar.settings import Settings

#: Makes Belljar's code in the guest send memory with an expected message.
PLANT = """
import gc, os
gc.unfreeze()
own = next(each for each in gc.get_objects() if type(each) is dict and "_serve_cells" in each and "_branch" in each)
channel = own["channel"]
send = channel.send

def plant(peer, message, blob=b"", descriptors=()):
    if blob == {word!r} or {word!r} in message:
        memory = os.memfd_create("planted")
        os.write(memory, bytes(1 << 20))
        descriptors = [memory] * {count}
    send(peer, message, blob, descriptors)

channel.send = plant
"""


@pytest.fixture(scope="module")
def box(settings: Settings) -> Iterator[belljar.Sandbox]:
    with belljar.Sandbox(settings=settings) as opened:
        yield opened


@pytest.mark.parametrize("count", [1, 3, 253])
@pytest.mark.parametrize("word", [b"passing", b"copy", b"joined"])
def test_a_branch_plants_nothing(box: belljar.Sandbox, word: bytes, count: int) -> None:
    with box.session() as session:
        assert session.run(PLANT.format(word=word, count=count)).ok
        with pytest.raises(CannotBranch):
            session.branch()
        assert not planted()
    with box.session() as following, contextlib.closing(following.branch()[0]) as copy:
        assert copy.run("print(1)").stdout == "1\n"


def test_a_cell_plants_nothing(box: belljar.Sandbox) -> None:
    with box.session() as session:
        assert session.run(PLANT.format(word="ended", count=1)).status == "crashed"
        assert not planted()


def planted() -> list[str]:
    """Return the planted files that this process has open."""
    found = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except FileNotFoundError:
            continue  # closed meanwhile
    return [each for each in found if "planted" in each]
