"""Warm processes, jails and the guests that wait for a program."""
