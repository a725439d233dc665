"""A guest as the host holds it: its number, its cell, and our ends of its descriptors."""

from __future__ import annotations

from collections.abc import Callable
from os import O_CLOEXEC, close, fchmod, pipe2, set_blocking

from belljar import channel
from belljar.backends.local.cells import Cell
from belljar.zygote.handle import ZygoteHandle


class Guest:
    """A jailed fork: waiting for its program, then running it."""

    pid: int | None = None  # known once its zygote is gone: the warden then reports by it
    has_ended = False
    ended: Callable[[int | None, float], None] | None = None  # wait status (None: unknown), CPU seconds
    stdout = their_stdout = -1

    def __init__(self, number: int, cell: Cell, zygote: ZygoteHandle) -> None:
        """Open what it will be given.

        Raises:
            OSError: we have no descriptors left; nothing stays open.
        """
        self.number = number
        self.cell = cell
        self.zygote = zygote
        self.weight = zygote.weight
        self.channel, self.their_channel = channel.bare_pair()
        try:
            self.stdout, self.their_stdout = stdout, _ = pipe2(O_CLOEXEC)
            self.stderr, self.their_stderr = stderr, _ = pipe2(O_CLOEXEC)
        except OSError:
            self.channel.close()
            self.their_channel.close()
            if self.stdout >= 0:
                close(self.stdout)
                close(self.their_stdout)
            raise
        set_blocking(stdout, False)
        set_blocking(stderr, False)
        fchmod(stdout, 0o666)  # it is ours; a program that opens /dev/stdout must be able to
        fchmod(stderr, 0o666)

    def close_their_ends(self) -> None:
        """The zygote has its copies."""
        self.their_channel.close()
        close(self.their_stdout)
        close(self.their_stderr)

    def close(self) -> None:
        """Close our ends. The guest has ended or is about to be killed."""
        self.channel.close()
        close(self.stdout)
        close(self.stderr)
