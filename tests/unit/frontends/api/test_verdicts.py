"""How outputs are compared: slices must not change the verdict."""

from __future__ import annotations

import random

import pytest

from belljar.frontends.api import verdicts
from belljar.frontends.api.bodies import Comparison


def _plainly(text: str, compare: Comparison) -> list[str]:
    return text.split() if compare == "tokens" else [line.rstrip() for line in text.strip().split("\n")]


@pytest.mark.parametrize("compare", ["tokens", "trimmed"])
def test_texts_are_alike_as_if_they_were_compared_in_one_piece(
    compare: Comparison, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_SLICE", 5)
    chance = random.Random(1)
    seen = {True: 0, False: 0}
    for _ in range(5000):
        one = "".join(chance.choices("ab \n\t\u2003\x1c", k=chance.randrange(25)))
        at = chance.randrange(len(one) + 1)
        other = one[:at] + chance.choice(["", " ", "\n", "\t", "\r\n", "a"]) + one[at:]
        alike = _plainly(one, compare) == _plainly(other, compare)
        assert (verdicts.reduce(one, compare) == verdicts.reduce(other, compare)) is alike, (one, other)
        seen[alike] += 1
    assert min(seen.values()) > 500, seen
