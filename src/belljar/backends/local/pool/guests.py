"""A guest as the host holds it: its number, its jail, and our ends of its descriptors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import O_CLOEXEC, close, fchmod, pipe2, set_blocking

from belljar import channel
from belljar.backends.local.pool.descriptors import keep_reserve
from belljar.backends.local.pool.jails import Jail
from belljar.backends.local.pool.warden_handle import ZygoteHandle


class Guest:
    """A jailed fork: waiting for its program, then running it."""

    pid: int | None = None  # known once its zygote is gone: the warden then reports by it
    has_ended = False
    ended: Callable[[int | None, float], None] | None = None  # wait status (None: unknown), CPU seconds
    stdout = their_stdout = stderr = their_stderr = -1
    their_channel: channel.Peer | None = None

    def __init__(self, number: int, jail: Jail, zygote: ZygoteHandle, stays: bool) -> None:
        """Open what it will be given. Who stays keeps its socket, so that is no other's.

        Raises:
            OSError: we have none left for it, but those kept back; nothing stays open.
        """
        self.number = number
        self.jail = jail
        self.zygote = zygote
        self.kind = zygote.kind
        self.channel = jail.channel
        if stays:
            self.channel, self.their_channel = channel.bare_pair()
        try:
            self.stdout, self.their_stdout = stdout, _ = pipe2(O_CLOEXEC)
            self.stderr, self.their_stderr = stderr, newest = pipe2(O_CLOEXEC)
            keep_reserve(newest)
        except OSError:
            self._close_channel()
            for descriptor in (self.stdout, self.their_stdout, self.stderr, self.their_stderr):
                if descriptor >= 0:
                    close(descriptor)
            raise
        set_blocking(stdout, False)
        set_blocking(stderr, False)
        fchmod(stdout, 0o666)  # it is ours; a program that opens /dev/stdout must be able to
        fchmod(stderr, 0o666)

    @property
    def their_ends(self) -> tuple[int, ...]:
        """What the zygote is to give it."""
        ends = self.their_stdout, self.their_stderr
        return ends if self.their_channel is None else (*ends, self.their_channel.fileno())

    def send(self, packet: bytes, descriptors: Sequence[int] = ()) -> None:
        """Hand over what it waits for. Until it has said that it has that, nobody else may come to its jail.

        Raises:
            ChannelClosed, BlockingIOError: it is gone.
        """
        self.jail.is_unread = True
        channel.send_packet(self.channel, packet, descriptors, channel.NOW)

    def close_their_ends(self) -> None:
        """The zygote has its copies."""
        if self.their_channel is not None:
            self.their_channel.close()
        close(self.their_stdout)
        close(self.their_stderr)

    def close(self) -> None:
        """Close our ends. The guest has ended or is about to be killed."""
        self._close_channel()
        close(self.stdout)
        close(self.stderr)

    def _close_channel(self) -> None:
        if self.their_channel is not None:  # else it is the jail's
            self.channel.close()
            self.their_channel.close()
