"""Turns what a back end observed into the answer."""

from __future__ import annotations

import codecs
import os
import signal

from belljar.contract.execution import Evidence, Execution, Outcome, ProgramError, Status, Usage, classify
from belljar.engine.tracebacks import read_error

DECODED_BYTES = 512 * 1024  # at a time: other threads run in between

_SIGNAL_NAMES = {each.value: each.name for each in signal.Signals}


def new_id() -> str:
    """An id that cannot be guessed: an execution can be cancelled by its id."""
    return "x_" + os.urandom(16).hex()


def judge(execution_id: str, execution: Execution, seen: Evidence, queue_seconds: float) -> Outcome:
    status = classify(seen)
    stderr = _decode(seen.stderr, seen.stderr_cut)
    may_show_error = status in (Status.FAILED, Status.DENIED) and seen.exit_code == 1
    return Outcome(
        id=execution_id,
        language=execution.language,
        status=status,
        exit_code=None if seen.signal is not None else seen.exit_code,
        signal=None if seen.signal is None else _name_signal(seen.signal),
        stdout=_decode(seen.stdout, seen.stdout_cut),
        stderr=stderr + seen.note,
        stdout_cut=seen.stdout_cut,
        stderr_cut=seen.stderr_cut,
        error=seen.error or (_read_error(stderr, seen) if may_show_error and execution.language == "python" else None),
        displays=seen.displays,
        artifacts=seen.artifacts,
        compilation=seen.compilation,
        tool_calls=seen.tool_calls,
        coverage=seen.coverage,
        usage=Usage(
            wall_seconds=_to_microseconds(seen.wall_seconds),
            cpu_seconds=_to_microseconds(seen.cpu_seconds),
            memory_peak_bytes=seen.memory_peak_bytes,
            queue_seconds=_to_microseconds(queue_seconds) if queue_seconds else 0.0,
            network=seen.network,
        ),
    )


def _read_error(stderr: str, seen: Evidence) -> ProgramError | None:
    """The exception at the end of standard error, even in the part that was cut off."""
    if not seen.stderr_cut:
        return read_error(stderr)
    return read_error(stderr + _decode(seen.stderr_tail, False)) if seen.stderr_tail else None


def _to_microseconds(seconds: float) -> float:
    """Rounded. `round` works in decimals, which takes longer than reading the clock."""
    return int(seconds * 1e6 + 0.5) / 1e6


def _decode(written: bytes, was_cut: bool) -> str:
    """Replace bytes that are not UTF-8; drop half a character at the output limit, which the program did not cause."""
    if len(written) > DECODED_BYTES:
        decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        slices = (written[at : at + DECODED_BYTES] for at in range(0, len(written), DECODED_BYTES))
        return "".join([*map(decode, slices), decode(b"", not was_cut)])
    return codecs.utf_8_decode(written, "replace", not was_cut)[0] if written else ""


def _name_signal(number: int) -> str:
    if number < signal.SIGRTMIN:  # the C library keeps some below it for itself, without names
        return _SIGNAL_NAMES.get(number) or f"SIG{number}"
    return _SIGNAL_NAMES.get(number) or f"SIGRTMIN+{number - signal.SIGRTMIN}"
