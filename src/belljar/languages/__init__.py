"""Languages other than Python: one TOML file each, and which of their toolchains this machine has.

    toolchain    a language as its TOML file describes it, and its names
    toolchains   which toolchains are installed, their versions, and what was prepared to start them faster
    install      how to install them

Importing reads no files: a Python program must not wait for thirty TOML files.
"""

from belljar.languages.toolchain import PYTHON_NAMES, Toolchain, find_name, load_all, load_one
from belljar.languages.toolchains import InstalledToolchains, installed_toolchains

__all__ = [
    "PYTHON_NAMES",
    "InstalledToolchains",
    "Toolchain",
    "find_name",
    "installed_toolchains",
    "load_all",
    "load_one",
]
