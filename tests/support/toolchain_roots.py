"""Where the toolchains are that Debian 12 does not have: in roots made by hand, as docs/languages.md says."""

from __future__ import annotations

from pathlib import Path

_ROOTS = {"swift": "/srv/trixie", "julia": "/srv/bullseye"}


def found() -> dict[str, str]:
    """Those of this machine, as the setting `languages.roots` takes them."""
    return {name: root for name, root in _ROOTS.items() if Path(root).is_dir()}
