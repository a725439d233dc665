"""Reads the configuration files of X-Master's code server for `--xmaster-config DIR`.

Their values override a settings file and are overridden by flags. Every file is optional. `mcp_config.json` holds the
addresses of the original's processes; Belljar has only one process, so the file is only checked to be JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from belljar.contract.errors import InvalidSettings


def read_xmaster_config(directory: Path) -> dict[str, Any]:
    """Translate the files in `directory` into settings, by dotted name.

    Raises:
        InvalidSettings: the directory or a file cannot be read.
    """
    if not directory.is_dir():
        raise InvalidSettings(f"--xmaster-config: {directory} is not a directory")
    found: dict[str, Any] = {}
    found.update(_web(_read(directory, "web_agent.json", dict)))
    paper_prompt = _read(directory, "paper_agent.json", dict).get("paperQA_prompt")
    if isinstance(paper_prompt, str):
        found["web.paper_prompt"] = paper_prompt
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
    """Entries are URLs, or paths to .py or .js files, which become commands."""
    found: dict[str, Any] = {}
    for number, each in enumerate(servers, 1):
        if not isinstance(each, str):
            raise InvalidSettings(f"server_list.json: entry {number} must be a string")
        name = f"xmaster-{number}"
        if each.startswith(("http://", "https://")):
            found[f"tools.servers.{name}.url"] = each
            continue
        if not each.endswith((".py", ".js")):
            raise InvalidSettings(f"server_list.json: {each!r} is neither a .py or .js file nor a URL")
        path = Path(each) if Path(each).exists() else directory / each
        command = (sys.executable if each.endswith(".py") else "node", str(path.absolute()))
        found[f"tools.servers.{name}.command"] = command
    return found
