"""The language table inside images: what an image holds is known when it is tried, not before.

The local back end asks the machine which toolchains it has. An image has its own, on its own PATH; a language whose
toolchain is not in it fails with a message that names the command.
"""

from __future__ import annotations

from collections.abc import Mapping

from belljar.languages import Toolchain
from belljar.languages.toolchains import InstalledToolchains
from belljar.settings import Settings


class ImageToolchains(InstalledToolchains):
    """Stands in for this machine where programs run in images."""

    def __init__(self, settings: Settings, image_ids: Mapping[str, str]) -> None:
        super().__init__(settings.state_dir.resolve())
        self._image_ids = image_ids

    def root_of(self, name: str) -> str:
        """The image is the system."""
        return ""

    def is_available(self, name: str) -> bool:
        """Tried, not asked."""
        return True

    def make_ready(self, name: str) -> None:
        """Whatever has to be prepared was, when the image was built."""

    def prepare_quietly(self, name: str) -> None:
        """The same."""

    def is_prepared(self, name: str) -> bool:
        """Nothing of ours is in an image."""
        return False

    def find_command(self, toolchain: Toolchain, command: str) -> str:
        """By its name, on the image's PATH."""
        return command

    def fingerprint(self, name: str) -> str:
        """What compiled programs depend on: any other image, and they are compiled anew."""
        return " ".join(f"{image}={known}" for image, known in sorted(self._image_ids.items()))
