"""Everything that runs on the other side of the wall: in the warden, in warm processes and in guests.

Standard library and Python 3.9 only: a guest environment's own interpreter reads these files, and the whole folder
is what is copied into a jail.
"""
