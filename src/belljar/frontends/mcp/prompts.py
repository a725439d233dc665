"""The prompt that teaches a model to print its results."""

from __future__ import annotations

from typing import Any

from belljar.contract.errors import NotFound

Json = dict[str, Any]

NAME = "code_execution_prompt"

LISTED: list[Json] = [
    {
        "name": NAME,
        "title": "Solve it with code",
        "description": "How to work with the sandbox: print results, keep state in a session, get plots and files.",
        "arguments": [{"name": "task", "description": "what is to be solved", "required": False}],
    }
]

_LESSON = """\
You can run code in a sandbox. How to get results out of it:

- Only what a program prints comes back. End with print(...) of every value you need; a bare expression shows nothing, \
except as the last line of a cell in a session.
- Print little: summaries, heads of tables, the numbers asked for. Long output is cut.
- Each run starts afresh. For work in several steps call open_session once and pass its session_id to run_code: \
variables, imports and files stay. branch_session copies a live session, so you can try two ways from one state.
- Figures come back as images by themselves: draw with matplotlib and call plt.show(), or leave the figure open.
- Write files into the current directory and name them in `artifacts` to get them back.
- There is no network unless the operator allowed it, and nothing can be installed. sandbox://environments lists \
the libraries that are there.
- When a program fails, read the last line of its stderr, fix that, and run it again; do not guess the result.
"""


def get(name: str, arguments: dict[str, str] | None) -> Json:
    """Raises NotFound when there is no prompt of that name."""
    if name != NAME:
        raise NotFound(f"there is no prompt {name[:100]!r}; there is {NAME}")
    task = (arguments or {}).get("task", "").strip()
    text = _LESSON + (f"\nThe task: {task}\n" if task else "")
    return {
        "description": LISTED[0]["description"],
        "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
    }
