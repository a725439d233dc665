"""The pools of a sandbox where no container engine is needed: names that stand for no pool."""

from __future__ import annotations

import asyncio

import pytest

from belljar.backends.container.sandbox import ContainerSource
from belljar.backends.pooled import GuestPools
from belljar.contract.errors import NotAllowed, UnknownEnvironment
from belljar.settings import Settings


@pytest.mark.parametrize(
    ("name", "error"), [("no-such", UnknownEnvironment), ("image:not-allowed", NotAllowed)], ids=["unknown", "refused"]
)
def test_a_name_that_stands_for_no_image_is_refused_before_room_is_made(
    settings: Settings, name: str, error: type[Exception]
) -> None:
    async def enter() -> None:
        source = ContainerSource(settings, None)
        source.pools_max = 0
        await GuestPools(source, 60.0).enter(name)

    with pytest.raises(error):
        asyncio.run(enter())
