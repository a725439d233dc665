"""Reads JSON answers of web services."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


def read_json(response: httpx.Response) -> Any:
    """Parse the answer; lone surrogates, left where a text was cut, become question marks.

    Raises:
        ValueError: the answer is not JSON.
    """
    try:
        whole = json.dumps(response.json(), ensure_ascii=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return json.loads(whole.encode("utf-8", "replace").decode())
