"""The languages beside Python: one TOML file each, and what is found of them on this machine.

    toolchain   a language as its file describes it; every file, and every name a caller may use
    machine     which toolchains are here, their versions, and what they have prepared to start faster
    install     how to get them

Nothing is read at import: a program in Python must not wait for thirty files.
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
