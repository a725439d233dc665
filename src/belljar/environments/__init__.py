"""Guest environments: each a Python of its own, with the packages programs may use.

`store` keeps and locks what is built, also for callers on an event loop; `build` builds one, `interpreters` finds the
Python to build from, and `programs` runs the installers.
"""

from belljar.environments.build import Environment, Progress
from belljar.environments.interpreters import OLDEST_PYTHON
from belljar.environments.store import Environments, ensure_unless_cancelled

__all__ = ["OLDEST_PYTHON", "Environment", "Environments", "Progress", "ensure_unless_cancelled"]
