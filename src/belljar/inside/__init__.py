"""The code that runs on the jail's side of the wall: in the warden, in zygotes and in guests.

Standard library and Python 3.9 only: the interpreter of a guest environment reads these files. The whole folder is
copied into a jail.
"""
