"""The walls around a program: one file for each Linux mechanism, and `enter`, which puts them up in order.

This package also runs in the guests' own interpreters: standard library and Python 3.9 only.
"""
