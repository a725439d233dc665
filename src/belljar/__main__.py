"""`python -m belljar` is the `belljar` command."""

from __future__ import annotations

import sys

from belljar.frontends.cli import main

if __name__ == "__main__":
    sys.exit(main())
