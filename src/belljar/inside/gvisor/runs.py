"""Who has a guest in a container whose kernel is not the host's: a program or a session, as the steward knows it."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from typing import Any

from belljar import channel
from belljar.inside.gvisor import event_loop, guests, workdir, zygote
from belljar.inside.gvisor.relay import DescriptorRelay, close_all, open_to_all

_INLINE_BYTES = 60 * 1024
_UNKNOWN_ERROR = "it could not be"


class Tenant:
    """Whoever has a guest: a program, or a session."""

    look_seconds = 0.1  # between two looks at its memory; most programs have ended by the first

    def __init__(self, number: int, asked: dict[str, Any], blob: bytes) -> None:
        self.number = number
        self.deadline = 0.0
        self.next_look = 0.0
        self.deadline_passed = self.is_out_of_memory = False
        self.was_told = False  # the host knows how it ended
        self.guest: guests.Guest | None = None
        self.relay = DescriptorRelay(number)
        self._asked = asked
        self._blob = blob
        self._must_die = False

    def begin(self) -> None:
        """Get a guest, and give it what it is to do."""
        raise NotImplementedError

    def settle(self) -> None:
        """Once its first process is gone, so is everyone: read what is left and tell the host."""
        raise NotImplementedError

    def resume(self) -> None:
        """The host has caught up."""

    def obey(self, word: str, message: dict[str, Any], blob: bytes) -> None:
        """What the host wants while it lives."""
        if word == "kill":
            self.kill()
        elif word == "interrupt" and self.guest is not None:
            self.guest.signal(signal.SIGINT)
        elif word == "send":
            self.relay.send(message["line"], blob[: message["bytes"]], message["kinds"], blob[message["bytes"] :])
        elif word == "hang up":
            self.relay.hang_up(message["line"])
        elif word == "pause":
            self.relay.pause(message["is_paused"])

    def look(self, now: float) -> None:
        """No cgroup counts the memory of all its processes together, so we add it up now and then."""
        assert self.guest is not None
        self.next_look = 0.0 if self.was_told else now + self.look_seconds
        if self.next_look and self.guest.resident_bytes() > self._asked["memory_bytes"]:
            self.is_out_of_memory = True
            self.kill()

    def watch_news(self) -> None:
        """Hear who the guest's first process is, and how it ends."""
        assert self.guest is not None
        self.next_look = time.monotonic() + self.look_seconds
        self.guest.read_news()
        event_loop.watch(self.guest.news, self._on_news)

    def _on_news(self) -> None:
        guest = self.guest
        assert guest is not None
        if not guest.read_news():
            event_loop.unwatch(guest.news)
            self.settle()
        elif self._must_die:
            self.kill()

    def kill(self) -> None:
        """End everyone in this one's world."""
        if self.guest is not None and not self.was_told:
            self._must_die = True
            self.guest.signal(signal.SIGKILL)

    def end(self) -> tuple[int | None, int, int]:
        """Wait status, CPU in microseconds, largest resident set."""
        guest = self.guest
        assert guest is not None
        guest.read_news()  # all of it was written before its first process left
        event_loop.unwatch(guest.news)
        if len(guest.said) >= zygote.BORN.size + zygote.ENDED.size:
            return zygote.ENDED.unpack_from(guest.said, zygote.BORN.size)
        return (int(signal.SIGKILL) if self._must_die else None), 0, 0

    def fail(self, step: str, reason: str) -> None:
        """No program ran."""
        if not self.was_told:
            self.was_told = True
            event_loop.send({"run": self.number, "failed": step, "reason": reason})

    def close(self) -> None:
        """Let go of everything."""
        self.relay.close()
        if self.guest is not None:
            event_loop.unwatch(self.guest.news)
            self.guest.close()
            self.guest = None


class Run(Tenant):
    """One program."""

    def __init__(self, number: int, asked: dict[str, Any], blob: bytes) -> None:
        super().__init__(number, asked, blob)
        self.flooded = False
        self._work_dir = self._pictures = self._stdin = -1
        self._stdin_left = memoryview(b"")
        self._seen = {"stdout": 0, "stderr": 0, "pictures": 0}
        self._paused: list[tuple[int, Callable[[], object]]] = []

    def begin(self) -> None:
        """Hand the program to a guest."""
        asked = self._asked
        self.guest = guest = guests.take(asked["kind"], asked["allowance"])
        end = asked["packet_bytes"]
        packet, lent = self._blob[:end], self._blob[end : end + asked["lent_bytes"]]
        descriptors: list[int] = []
        try:
            if len(packet) > _INLINE_BYTES:
                descriptors.append(os.memfd_create("belljar", os.MFD_CLOEXEC))
                with open(descriptors[0], "wb", closefd=False) as file:
                    file.write(packet)
                packet = channel.build({"in_memfd": True})
            if asked["shows"]:
                self._pictures, theirs = os.pipe2(os.O_CLOEXEC)
                descriptors.append(theirs)
                os.set_blocking(self._pictures, False)
                event_loop.watch(self._pictures, self._on_pictures)
            descriptors += self.relay.open(asked["kinds"], lent)
            stdin = memoryview(self._blob)[end + len(lent) :]
            if stdin:
                theirs, self._stdin = os.pipe2(os.O_CLOEXEC)
                descriptors.append(theirs)
                open_to_all(theirs)
                os.set_blocking(self._stdin, False)
                self._stdin_left = stdin
            channel.send_packet(guest.channel, packet, descriptors)
        finally:
            close_all(descriptors)
        event_loop.watch(guest.channel.fileno(), self._on_channel)
        self.watch_news()
        event_loop.watch(guest.stdout, lambda: self._on_output("stdout", guest.stdout))
        event_loop.watch(guest.stderr, lambda: self._on_output("stderr", guest.stderr))
        if self._stdin >= 0:
            event_loop.watch(self._stdin, self._feed, select.POLLOUT)

    def obey(self, word: str, message: dict[str, Any], blob: bytes) -> None:
        """What the host wants while it lives, and of its files afterwards."""
        if word == "fetch":
            self._fetch(message["paths"], message["bytes_max"])
        else:
            super().obey(word, message, blob)

    def _on_channel(self) -> None:
        guest = self.guest
        assert guest is not None
        event_loop.unwatch(guest.channel.fileno())
        try:
            message, _, descriptors = channel.receive(guest.channel, 1)
        except (channel.ChannelClosed, BlockingIOError):
            return
        if message:
            self.fail(str(message.get("failed")), str(message.get("reason")))
            return
        if descriptors:
            self._work_dir = descriptors[0]
        self.deadline = time.monotonic() + self._asked["wall_seconds"]
        event_loop.send({"run": self.number, "started": True})

    def _on_output(self, stream: str, descriptor: int) -> bool:
        if event_loop.is_behind() and not self.was_told:
            reader = event_loop.unwatch(descriptor)
            if reader is not None:
                self._paused.append((descriptor, reader))
            return False
        try:
            chunk = os.read(descriptor, event_loop.READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            event_loop.unwatch(descriptor)
            return False
        room = max(0, self._asked["output_bytes"] - self._seen[stream])
        self._seen[stream] += len(chunk)
        event_loop.send({"run": self.number, "stream": stream, "bytes": len(chunk)}, chunk[:room])
        self._check_flood()
        return True

    def _check_flood(self) -> None:
        if sum(self._seen.values()) > self._asked["flood_bytes"] and not self.flooded:
            self.flooded = True
            self.kill()

    def _on_pictures(self) -> bool:
        try:
            chunk = os.read(self._pictures, event_loop.READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            event_loop.unwatch(self._pictures)
            return False
        self._seen["pictures"] += len(chunk)
        event_loop.send({"run": self.number, "pictures": True}, chunk)
        self._check_flood()
        return True

    def _feed(self) -> None:
        try:
            while self._stdin_left:
                self._stdin_left = self._stdin_left[os.write(self._stdin, self._stdin_left[: event_loop.READ_BYTES]) :]
        except BlockingIOError:
            return
        except BrokenPipeError:
            pass  # it wants no more
        self._close_stdin()

    def _close_stdin(self) -> None:
        if self._stdin >= 0:
            event_loop.unwatch(self._stdin)
            os.close(self._stdin)
            self._stdin = -1

    def resume(self) -> None:
        """The host has caught up."""
        while self._paused:
            event_loop.watch(*self._paused.pop())

    def settle(self) -> None:
        """Once its first process is gone, so is everyone: read what is left and tell the host."""
        guest = self.guest
        if guest is None or not guest.has_left or self.was_told:
            return
        self.was_told = True
        self.deadline = self.next_look = 0.0
        status, cpu, peak = self.end()
        self._paused.clear()
        for stream, descriptor in (("stdout", guest.stdout), ("stderr", guest.stderr)):
            while not self.flooded and self._on_output(stream, descriptor):
                pass
        while self._pictures >= 0 and self._on_pictures():
            pass
        self.relay.drain()
        self._stop_watching()
        ended = {
            "status": status,
            "cpu_microseconds": cpu,
            "peak_bytes": peak,
            "deadline_passed": self.deadline_passed,
            "flooded": self.flooded,
            "out_of_memory": self.is_out_of_memory,
            "paths": self._walk(),
        }
        event_loop.send({"run": self.number, "ended": ended})
        guests.refill(self._asked["kind"], self._asked["default_allowance"])

    def _walk(self) -> list[str]:
        if self._work_dir < 0:
            return []
        assert self.guest is not None
        with workdir.acting_as(self.guest.uid):
            return workdir.walk(self._work_dir)

    def _fetch(self, paths: list[str], bytes_max: int) -> None:
        """Send the files asked for, as far as they fit."""
        found, content, is_over = [], bytearray(), False
        assert self.guest is not None
        for path in paths:
            with workdir.acting_as(self.guest.uid):
                text = workdir.read(self._work_dir, path, bytes_max - len(content))
            if text is None:
                continue
            if len(content) + len(text) > bytes_max:
                is_over = True
                break
            found.append([path, len(text)])
            content += text
        event_loop.send({"run": self.number, "files": found, "is_over": is_over}, bytes(content))

    def _stop_watching(self) -> None:
        guest = self.guest
        self._close_stdin()
        if guest is not None and guest.channel.fileno() >= 0:
            for descriptor in (guest.channel.fileno(), guest.stdout, guest.stderr):
                event_loop.unwatch(descriptor)
        if self._pictures >= 0:
            event_loop.unwatch(self._pictures)
            os.close(self._pictures)
            self._pictures = -1

    def close(self) -> None:
        """Let go of everything."""
        self._stop_watching()
        if self._work_dir >= 0:
            os.close(self._work_dir)
            self._work_dir = -1
        super().close()


class Session(Tenant):
    """An interpreter that stays. All that it says goes over lines; its directories stay here."""

    look_seconds = 1.0

    def begin(self) -> None:
        """Get a guest of sessions, and pass on what it and the host say to each other."""
        asked = self._asked
        self.guest = guest = guests.take(guests.SESSION, asked["allowance"])
        self.relay.speak(asked["channel"], guest.channel.dup())
        self.relay.listen(asked["stdout"], os.dup(guest.stdout))
        self.relay.listen(asked["stderr"], os.dup(guest.stderr))
        self.watch_news()

    def obey(self, word: str, message: dict[str, Any], blob: bytes) -> None:
        """What the host wants while it lives; of its files, too."""
        if word != "file":
            super().obey(word, message, blob)
            return
        answer, content = {"run": self.number, "asked": message["asked"]}, b""
        assert self.guest is not None
        try:
            with workdir.acting_as(self.guest.uid):
                found = self._work(message, blob)
            if isinstance(found, bytes):
                content = found
            else:
                answer["found"] = found
        except OSError as error:
            answer["error"] = error.errno or 0
            answer["reason"] = error.strerror or _UNKNOWN_ERROR
        event_loop.send(answer, content)

    def _work(self, message: dict[str, Any], blob: bytes) -> Any:
        if not self.relay.kept:
            raise FileNotFoundError(2, "it has no directory yet")
        root, path = self.relay.kept[0], message.get("path", "")
        if message["work"] == "list":
            return workdir.describe(root)
        if message["work"] == "read":
            content = workdir.read(root, path, message["bytes_max"])
            if content is None:
                raise FileNotFoundError(2, "no such file")
            return content
        if message["work"] == "write":
            workdir.write(root, path, blob)
        else:
            workdir.delete(root, path)
        return None

    def settle(self) -> None:
        """Once its first process is gone, so is everyone: read what is left and tell the host."""
        guest = self.guest
        if guest is None or not guest.has_left or self.was_told:
            return
        self.was_told = True
        self.next_look = 0.0
        status, _, _ = self.end()
        self.relay.drain()
        event_loop.send({"run": self.number, "ended": {"status": status, "out_of_memory": self.is_out_of_memory}})
