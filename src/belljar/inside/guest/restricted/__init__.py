"""Restricted Python: which imports, built-ins and names a program may use."""
