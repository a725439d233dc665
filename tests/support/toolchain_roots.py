"""Hand-made roots of toolchains that Debian 12 does not package; see docs/languages.md."""

from __future__ import annotations

from pathlib import Path

_ROOTS = {"swift": "/srv/trixie", "julia": "/srv/bullseye"}


def found() -> dict[str, str]:
    """The roots on this machine, as a value of the setting `languages.roots`."""
    return {name: root for name, root in _ROOTS.items() if Path(root).is_dir()}
