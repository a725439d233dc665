"""From settings and the server's own environment to what it offers."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from belljar.contract.errors import InvalidSettings
from belljar.frontends.mcp.config import Offer
from belljar.settings import Settings

#: The languages that CONTAINER_LANGUAGE may name.
_CONTAINER_LANGUAGES = {"python": "python", "py": "python", "javascript": "javascript", "js": "javascript"}


def offer_of(settings: Settings, environ: Mapping[str, str], **named: Any) -> Offer:
    """What a server with these settings offers; `named` replaces fields, such as its name.

    Raises:
        InvalidSettings: something is asked for that this installation cannot do.
    """
    chosen = settings.mcp
    familiar = familiar_image(environ)
    images = {**images_of(settings), **familiar}
    if images and settings.backend != "container":
        raise InvalidSettings(
            f"the image {next(iter(images.values()))!r} needs the container back end: set backend=container; or leave "
            "mcp.python_image, mcp.javascript_image and CONTAINER_IMAGE out, and programs run in the local sandbox"
        )
    offer = Offer(
        tools=chosen.tools,
        is_structured=chosen.output == "structured",
        env=_passed_through(chosen.pass_through_env, environ),
        network=chosen.network,
        environments={
            language: f"image:{image}" for language, image in images.items() if image != settings.container.image
        },
        language=next(iter(familiar), ""),
    )
    return dataclasses.replace(offer, **named)


def images_of(settings: Settings) -> dict[str, str]:
    """The container images that were chosen, by language."""
    chosen = (("python", settings.mcp.python_image), ("javascript", settings.mcp.javascript_image))
    return {language: image for language, image in chosen if image}


def _passed_through(names: tuple[str, ...], environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that are named, and only those; one that is not set is not passed."""
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
