"""Interpreters that stay: cells, files, branches."""
