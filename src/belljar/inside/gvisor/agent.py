"""First process of a container whose kernel is not the host's: it runs programs there and tells the host all of it.

It speaks frames over the container's standard input and output, the one way in that every runtime has. Its zygotes
(`plain`) fork the guests; it keeps the clocks of those who have one (`tenants`), and ends what must end.

What the host believes of a run comes from here; a program that broke out of its own walls could forge it for runs of
the same container, and for no other.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from typing import Any

from belljar import channel
from belljar.inside.gvisor import event_loop, guests
from belljar.inside.gvisor.runs import Run, Session, Tenant
from belljar.inside.warden import container_entry, warden
from belljar.jail import policy

_runs: dict[int, Tenant] = {}


def main() -> None:
    """Serve until the host leaves. Never returns."""
    try:
        event_loop.open_streams(_obey, _resume_all)
        warden.reset_signals()
        _settle()
        woken, alarm = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(alarm, warn_on_full_buffer=False)
        event_loop.watch(woken, lambda: _reap(woken))
        facts = container_entry.describe(sys.argv[1:])
        guests.show(facts)
        event_loop.send({"ready": facts})
        _serve()
    except BaseException:  # noqa: BLE001  (the end of the container: say why)
        traceback.print_exc()
    os._exit(70)


def _settle() -> None:
    """Our sources where a guest, whose root is its own, does not see them."""
    for name, content in warden.own_code().items():
        path = f"{policy.CODE_DIR}/{name}"
        os.makedirs(os.path.dirname(path), 0o755, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def _serve() -> None:
    while True:
        times = [at for run in _runs.values() for at in (run.deadline, run.next_look) if at]
        event_loop.wait(min(times, default=None))
        now = time.monotonic()
        for run in list(_runs.values()):
            if run.deadline and run.deadline <= now:
                run.deadline_passed = True
                run.deadline = 0.0
                run.kill()
            if run.next_look and run.next_look <= now:
                run.look(now)


def _resume_all() -> None:
    for run in _runs.values():
        run.resume()


def _obey(message: dict[str, Any], blob: bytes) -> None:
    word, number = message["do"], message.get("run", 0)
    if word == "greet":
        guests.greet(message)
    elif word in ("run", "open"):
        tenant = _runs[number] = (Run if word == "run" else Session)(number, message, blob)
        try:
            tenant.begin()
        except (OSError, channel.ChannelClosed) as error:
            tenant.fail("fork", str(error))
    elif number in _runs:
        if word == "done":
            _runs.pop(number).close()
        else:
            _runs[number].obey(word, message, blob)


def _reap(woken: int) -> None:
    os.read(woken, 4096)
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        for zygote in [each for each in guests.zygotes.values() if each.pid == pid]:
            zygote.lose()
        for run in list(_runs.values()):
            guest = run.guest
            if guest is not None and not run.was_told:
                if not guest.first:
                    guest.read_news()  # it may have lived and died since we last looked
                if guest.first == pid:
                    guest.has_left = True
                    run.settle()
