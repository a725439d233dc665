"""Belljar's code inside a guest process, next to the untrusted program."""
