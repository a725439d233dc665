"""The way out for programs that are given a network: one process of ours that asks the internet on their behalf.

A program keeps its empty network. What it is given is a listener on its own loopback, behind which `process` waits,
outside the jail and without rights. It speaks `speech`, goes where `rules` let it, and counts.
"""
