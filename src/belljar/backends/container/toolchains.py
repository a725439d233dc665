"""Toolchains in images: whether an image has one is known only when a program needs it.

The local back end looks for the toolchains of this machine. An image has its own, on its own PATH; a language whose
toolchain is not in it fails with a message that names the command.
"""

from __future__ import annotations

from collections.abc import Mapping

from belljar.languages import Toolchain


class ImageToolchains:
    """The toolchains of images: `Toolchains`."""

    def __init__(self, image_ids: Mapping[str, str]) -> None:
        """`image_ids` are those of the images that programs run in, by name; more may come."""
        self._image_ids = image_ids

    def check_available(self, name: str) -> None:
        """Do nothing: a missing toolchain shows when it is run."""

    def fingerprint(self, name: str) -> str:
        """The images, by their ids: if one changes, programs are compiled again."""
        return " ".join(f"{image}={known}" for image, known in sorted(self._image_ids.items()))

    def root_of(self, name: str) -> str:
        """Empty: the image is the system."""
        return ""

    def places_read_by(self, toolchain: Toolchain) -> Mapping[str, str]:
        """None: an image shows all of itself."""
        return {}

    def find_command(self, toolchain: Toolchain, command: str) -> str:
        """The command's name, which is looked up on the image's PATH."""
        return command

    def make_ready(self, name: str) -> None:
        """Do nothing: an image is prepared when it is built."""

    def prepare_quietly(self, name: str) -> None:
        """Do nothing, as in `make_ready`."""

    def is_prepared(self, name: str) -> bool:
        """False: Belljar adds nothing to an image."""
        return False
