"""Languages other than Python that have sessions: what is started, and how a cell is passed to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from belljar.languages.toolchain import load_one
from belljar.languages.toolchains import Toolchains

#: An interactive shell abandons its current command at SIGINT and reads the next line.
_SHELL_GREETING = "PS1= PS2=; set +H; unset HISTFILE; printf 'ready\\0' >&4\n"
_SHELL_LINES = (
    "IFS= read -r -d '' -u 3 __belljar_cell; eval \"$__belljar_cell\" </dev/null 3<&- 4>&-\nprintf '%s\\0' \"$?\" >&4\n"
)

LANGUAGES = ("javascript", "sh")


def order_of(language: str, toolchains: Toolchains) -> dict[str, Any]:
    """Describe the interpreter that `inside/guest/session/other_languages.py` starts.

    Raises:
        ToolchainMissing: it is not installed.
    """
    toolchain = load_one(language)
    toolchains.check_available(language)
    if language == "javascript":
        driver = Path(__file__).with_name("session.js").read_text("utf-8")
        node = toolchains.find_command(toolchain, "node")
        return {"argv": [node, "-e", driver], "environ": {}, "greeting": "", "lines": ""}
    bash = toolchains.find_command(toolchain, "bash")
    return {
        "argv": [bash, "--norc", "--noprofile", "--noediting", "-i"],
        "environ": {"PS1": "", "HISTFILE": "/dev/null"},
        "greeting": _SHELL_GREETING,
        "lines": _SHELL_LINES,
    }
