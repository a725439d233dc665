"""The configuration of one MCP server: its name, its tools, and what its programs get."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from belljar import __version__
from belljar.contract.errors import InvalidSettings
from belljar.settings import Settings

INSTRUCTIONS = (
    "Runs code in a sandbox: no access to the user's files, no network unless the operator gave it, limits on time and "
    "memory. Only what a program prints comes back, so print every result you need. Figures that matplotlib shows, or "
    "leaves open, come back as images. Each run starts afresh; open_session keeps variables, imports and files "
    "between runs, and its id is an argument of later calls."
)


#: How code-sandbox-mcp presents itself.
CODE_SANDBOX: Mapping[str, Any] = {
    "name": "code-sandbox",
    "title": "Code Sandbox",
    "instructions": "Executes Python and JavaScript code securely in isolated sandboxes and returns what it printed.",
    "has_prompt": False,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Chosen once, when the server starts."""

    name: str = "belljar"
    title: str = "Belljar sandbox"
    version: str = __version__
    instructions: str = INSTRUCTIONS
    tools: tuple[str, ...] = ()  # names of tools and groups; empty: all
    is_structured: bool = True  # results also as JSON by a schema, not as text alone
    env: Mapping[str, str] = field(default_factory=dict)  # variables for every program
    network: bool = False
    environments: Mapping[str, str] = field(default_factory=dict)  # by language, where it is not "default"
    language: str = ""  # of an image that all tools of code-sandbox-mcp use, whatever their name
    has_prompt: bool = True


#: The languages that CONTAINER_LANGUAGE may name.
_CONTAINER_LANGUAGES = {"python": "python", "py": "python", "javascript": "javascript", "js": "javascript"}


def configure(settings: Settings, environ: Mapping[str, str], **named: Any) -> ServerConfig:
    """The configuration for these settings; `named` replaces fields, such as its name.

    Raises:
        InvalidSettings: the settings need something that this installation lacks.
    """
    chosen = settings.mcp
    familiar = familiar_image(environ)
    images = {**images_of(settings), **familiar}
    if images and settings.backend != "container":
        raise InvalidSettings(
            f"the image {next(iter(images.values()))!r} needs the container back end: set backend=container; or leave "
            "mcp.python_image, mcp.javascript_image and CONTAINER_IMAGE out, and programs run in the local sandbox"
        )
    config = ServerConfig(
        tools=chosen.tools,
        is_structured=chosen.output == "structured",
        env=_passed_through(chosen.pass_through_env, environ),
        network=chosen.network,
        environments={
            language: f"image:{image}" for language, image in images.items() if image != settings.container.image
        },
        language=next(iter(familiar), ""),
    )
    return dataclasses.replace(config, **named)


def images_of(settings: Settings) -> dict[str, str]:
    """The container images in the settings, by language."""
    chosen = (("python", settings.mcp.python_image), ("javascript", settings.mcp.javascript_image))
    return {language: image for language, image in chosen if image}


def _passed_through(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """The named variables, without those that are not set."""
    for name in names:
        if "=" in name or "\0" in name or name.startswith("BELLJAR_"):
            raise InvalidSettings(f"--pass-through-env: {name!r} cannot be passed on; choose another name")
    return {name: environ[name] for name in names if name in environ}


def familiar_image(environ: Mapping[str, str]) -> dict[str, str]:
    """CONTAINER_IMAGE and CONTAINER_LANGUAGE, as code-sandbox-mcp reads them: both are needed."""
    image, language = environ.get("CONTAINER_IMAGE", ""), environ.get("CONTAINER_LANGUAGE", "")
    if not (image and language):
        return {}
    known = _CONTAINER_LANGUAGES.get(language.lower())
    if known is None:
        raise InvalidSettings(f"CONTAINER_LANGUAGE is {language!r} but must be python or javascript")
    return {known: image}
