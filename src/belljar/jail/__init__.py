"""Linux primitives: the walls, each in its own file, and the order in which they go up (`enter`).

Runs inside guest interpreters of any Python from 3.9 on: standard library only.
"""
