"""Toolchains in images: whether an image has one is known only when a program needs it.

The local back end looks for the toolchains of this machine. An image has its own, on its own PATH; a language whose
toolchain is not in it fails with a message that names the command.
"""

from __future__ import annotations

from collections.abc import Mapping

from belljar.languages import Toolchain
from belljar.languages.toolchains import InstalledToolchains
from belljar.settings import Settings


class ImageToolchains(InstalledToolchains):
    """The toolchains of images, in place of those that are installed on this machine."""

    def __init__(self, settings: Settings, image_ids: Mapping[str, str]) -> None:
        super().__init__(settings.state_dir.resolve())
        self._image_ids = image_ids

    def root_of(self, name: str) -> str:
        """Empty: the image is the system."""
        return ""

    def is_available(self, name: str) -> bool:
        """True: a missing toolchain shows when it is run."""
        return True

    def make_ready(self, name: str) -> None:
        """Nothing to do: an image is prepared when it is built."""

    def prepare_quietly(self, name: str) -> None:
        """Nothing to do, as in `make_ready`."""

    def is_prepared(self, name: str) -> bool:
        """False: Belljar adds nothing to an image."""
        return False

    def find_command(self, toolchain: Toolchain, command: str) -> str:
        """The command's name, which is looked up on the image's PATH."""
        return command

    def fingerprint(self, name: str) -> str:
        """The images, by their ids: if one changes, programs are compiled again."""
        return " ".join(f"{image}={known}" for image, known in sorted(self._image_ids.items()))
