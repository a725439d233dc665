#!/usr/bin/env python3
"""The docstring."""
print(__doc__)
