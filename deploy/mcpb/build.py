"""Build the MCP bundle (.mcpb): a zip with a manifest and our wheel, which desktop assistants install with a click.

The wheel's dependencies are not included: they are compiled for each machine, so `uvx` fetches them at the first start.
The manifest is generated from the list of tools, so it cannot name a tool that the server does not have.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from belljar import __version__
from belljar.frontends.mcp import resources, tools

ROOT = Path(__file__).resolve().parents[2]
DESCRIPTION = (
    "Runs Python, JavaScript and more in a local sandbox: plots, files, sessions that keep state and can be branched."
)

# Hosts start `mcp_config`; the entry point is for those that run Python themselves.
ENTRY_POINT = """\
import sys

from belljar.frontends.cli import main

sys.exit(main(["mcp", *sys.argv[1:]]))
"""


def describe(wheel_name: str) -> dict[str, Any]:
    """Return the manifest of the bundle."""
    return {
        "manifest_version": "0.3",
        "name": "belljar",
        "display_name": "Belljar",
        "version": __version__,
        "description": DESCRIPTION,
        "long_description": (
            "Code that a model writes runs in a jail on this machine: no access to your files, no network, "
            "limits on time and memory. Needs Linux 5.13 or newer, Python 3.11 and uv. The first start builds the "
            "environment that programs run in, which takes about a minute."
        ),
        "author": {"name": "The Belljar developers"},
        "license": "Apache-2.0",
        "keywords": ["sandbox", "code-execution", "python", "javascript"],
        "server": {
            "type": "python",
            "entry_point": "server/main.py",
            "mcp_config": {
                "command": "uvx",
                "args": [
                    "--from",
                    f"belljar[mcp] @ file://${{__dirname}}/{wheel_name}",
                    "belljar",
                    "mcp",
                    "--tools",
                    "${user_config.tools}",
                    "--output",
                    "${user_config.output}",
                ],
                "env": {},
            },
        },
        "tools": [{"name": tool.name, "description": tool.description} for tool in tools.ALL],
        "prompts": [
            {
                "name": resources.PROMPT,
                "description": resources.PROMPTS[0]["description"],
                "arguments": ["task"],
                "text": "Solve this by running code in the sandbox, and print every result: ${arguments.task}",
            }
        ],
        "compatibility": {"platforms": ["linux"], "runtimes": {"python": ">=3.11"}},
        "user_config": {
            "tools": {
                "type": "string",
                "title": "Tools",
                "description": "Which tools to offer: names or groups, separated by commas.",
                "default": "native",
                "required": False,
            },
            "output": {
                "type": "string",
                "title": "Results",
                "description": "plain: text alone; structured: also as JSON.",
                "default": "structured",
                "required": False,
            },
        },
    }


def build(out: Path) -> Path:
    """Build the wheel, put it into a bundle in `out`, and return the path of the bundle."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", scratch, str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(scratch).glob("*.whl")
        bundle = out / f"belljar-{__version__}.mcpb"
        with zipfile.ZipFile(bundle, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("manifest.json", json.dumps(describe(wheel.name), indent=2, ensure_ascii=False))
            archive.writestr("server/main.py", ENTRY_POINT)
            archive.write(wheel, wheel.name)
    return bundle


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    print(build(parser.parse_args().out))
