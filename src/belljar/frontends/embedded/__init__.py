"""Belljar inside a Python program: sandboxes and sessions without a server."""
