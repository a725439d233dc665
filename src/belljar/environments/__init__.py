"""Guest environments: each a Python of its own, with the packages programs may use.

`store` knows what is built and who may build, `build` makes one, `interpreters` finds the Python to make it from,
`programs` runs what all that takes; `asynchronous` does it beside an event loop.
"""

from belljar.environments.build import Environment, Progress
from belljar.environments.cancellable import ensure_unless_cancelled
from belljar.environments.interpreters import OLDEST_PYTHON
from belljar.environments.store import Environments

__all__ = ["OLDEST_PYTHON", "Environment", "Environments", "Progress", "ensure_unless_cancelled"]
