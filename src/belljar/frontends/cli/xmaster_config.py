"""The configuration files of X-Master's code server, read as they are: `--xmaster-config DIR`.

What they say becomes settings, which count for more than a settings file and for less than flags. A file that is not
there says nothing. `mcp_config.json` holds the addresses of the original's own processes; here these are one, so it is
read, checked to be JSON, and not needed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings


def read_xmaster_config(directory: Path) -> dict[str, Any]:
    """The settings that the files in `directory` stand for, by their dotted names.

    Raises:
        InvalidSettings: the directory or a file cannot be read.
    """
    if not directory.is_dir():
        raise InvalidSettings(f"--xmaster-config: {directory} is no directory")
    found: dict[str, Any] = {}
    found.update(_web(_read(directory, "web_agent.json", dict)))
    found.update(_paper(_read(directory, "paper_agent.json", dict)))
    found.update(_models(_read(directory, "llm_call.json", dict)))
    servers = _servers(directory, _read(directory, "server_list.json", list))
    found.update(servers)
    if not servers:
        found["tools.builtin"] = ("web_search", "web_parse")
    _read(directory, "mcp_config.json", dict)
    return found


def _read(directory: Path, name: str, kind: type) -> Any:
    path = directory / name
    try:
        value = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return kind()
    except (OSError, ValueError) as error:
        raise InvalidSettings(f"cannot read {path}: {error}") from error
    if not isinstance(value, kind):
        raise InvalidSettings(f"{path} must hold a JSON {'object' if kind is dict else 'list'}")
    return value


def _web(web: dict[str, Any]) -> dict[str, Any]:
    names = {
        "serper_api_key": "web.serper_api_key",
        "search_region": "web.search_region",
        "search_lang": "web.search_lang",
        "USE_MODEL": "llm.use_model",
        "BASE_MODEL": "llm.base_model",
    }
    found = {names[name]: str(value) for name, value in web.items() if name in names}
    prompts = web.get("user_prompt")
    if isinstance(prompts, dict) and isinstance(prompts.get("search_conclusion"), str):
        found["web.summary_prompt"] = prompts["search_conclusion"]
    return found


def _paper(paper: dict[str, Any]) -> dict[str, Any]:
    prompt = paper.get("paperQA_prompt")
    return {"web.paper_prompt": prompt} if isinstance(prompt, str) else {}


def _models(models: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, model in models.items():
        if not isinstance(model, dict) or not isinstance(model.get("url"), str):
            raise InvalidSettings(f"llm_call.json: {name!r} has no url")
        found[f"llm.models.{name}.url"] = model["url"]
        found[f"llm.models.{name}.authorization"] = str(model.get("authorization") or "")
        if "retry_time" in model:
            found[f"llm.models.{name}.retries"] = model["retry_time"]
    return found


def _servers(directory: Path, servers: list[Any]) -> dict[str, Any]:
    """A path to a .py or .js file is a command; what begins with http is a URL."""
    found: dict[str, Any] = {}
    for number, each in enumerate(servers, 1):
        if not isinstance(each, str):
            raise InvalidSettings(f"server_list.json: entry {number} must be a string")
        name = f"xmaster-{number}"
        if each.startswith(("http://", "https://")):
            found[f"tools.servers.{name}.url"] = each
            continue
        if not each.endswith((".py", ".js")):
            raise InvalidSettings(f"server_list.json: {each!r} is no .py, no .js and no URL")
        path = Path(each) if Path(each).exists() else directory / each
        command = (sys.executable if each.endswith(".py") else "node", str(path.absolute()))
        found[f"tools.servers.{name}.command"] = command
    return found
