"""The list of languages for callers and operators: which are installed, their versions, how to install the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from belljar.languages.toolchain import Toolchain, load_all
from belljar.languages.toolchains import installed_toolchains
from belljar.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """One language, as found on this machine."""

    toolchain: Toolchain
    available: bool
    version: str | None

    @property
    def how_to_get(self) -> str | None:
        """The command that installs it; None if it is installed."""
        return None if self.available else how_to_get(self.toolchain)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.toolchain.name,
            "title": self.toolchain.title,
            "aliases": list(self.toolchain.aliases),
            "available": self.available,
            "version": self.version,
            "install": self.how_to_get,
        }


def how_to_get(toolchain: Toolchain) -> str:
    """The command that installs it, where a package manager has it, else a note."""
    install = toolchain.install
    return f"belljar languages install {toolchain.name}" if install.has_packages else install.note


def describe(settings: Settings, python_version: str | None) -> list[Listed]:
    """List every language by name. The first call runs each toolchain to get its version, which takes a while."""
    machine = installed_toolchains(settings)
    others = [name for name in load_all() if name != "python"]
    versions = {**machine.versions(others), "python": python_version}
    return [
        Listed(
            toolchain=toolchain,
            available=python_version is not None if name == "python" else machine.is_available(name),
            version=versions[name],
        )
        for name, toolchain in load_all().items()
    ]
