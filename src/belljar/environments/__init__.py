"""Guest environments: each a Python of its own, with the packages programs may use.

`store` keeps and locks what is built, `build` builds one, `interpreters` finds the Python to build from, `programs`
runs the installers, `cancellable` builds in a thread beside an event loop.
"""

from belljar.environments.build import Environment, Progress
from belljar.environments.cancellable import ensure_unless_cancelled
from belljar.environments.interpreters import OLDEST_PYTHON
from belljar.environments.store import Environments

__all__ = ["OLDEST_PYTHON", "Environment", "Environments", "Progress", "ensure_unless_cancelled"]
