"""What services on the web answer, as JSON that can be passed on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


def read_json(response: httpx.Response) -> Any:
    """The answer. Half of a character, as is left where a text was cut, becomes a question mark.

    Raises:
        ValueError: it is no JSON.
    """
    try:
        whole = json.dumps(response.json(), ensure_ascii=False)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return json.loads(whole.encode("utf-8", "replace").decode())
