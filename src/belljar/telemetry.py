"""What an operator sees: one log line per execution, and metrics for Prometheus.

Why a thread writes the log: the reader of standard error may stop reading, and a full pipe would block the event loop
and every program with it. The loop only appends to a list; when the reader is too far behind, lines are dropped and
counted instead.

Why not prometheus_client's own counters: they take a lock and look up names each time. An execution is counted in plain
numbers on the event loop; these become metrics when Prometheus requests them.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from belljar.contract.execution import Execution, Outcome, Status
from belljar.contract.sessions import SessionState

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_UNWRITTEN_LINES_MAX = 20_000
_FLUSH_SECONDS = 0.05
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BYTES = tuple(float(1 << power) for power in range(22, 33))

_encode_plain = msgspec.json.Encoder().encode

Facts = Callable[[], Mapping[str, Any]]


class Log:
    """Structured lines, as JSON or as text for people. Thread-safe."""

    def __init__(self, descriptor: int = 2, log_format: str = "auto") -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._as_text = log_format == "text" or (log_format == "auto" and os.isatty(descriptor))
        self._lines: list[dict[str, Any]] = []
        self._something = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._write_all, name="belljar-log", daemon=True)
        self._thread.start()

    def write(self, event: str, **fields: Any) -> None:
        """Log an event; fields are plain values."""
        self.put({"time": time.time(), "event": event, **fields})

    def put(self, line: dict[str, Any]) -> None:
        """Log a whole line with its fields `time` and `event`; the log changes it later."""
        if len(self._lines) >= _UNWRITTEN_LINES_MAX:
            self.dropped += 1
            return
        self._lines.append(line)
        if not self._something.is_set():
            self._something.set()

    def close(self) -> None:
        """Write what is left, unless that takes longer than a second."""
        self._closed = True
        self._something.set()
        self._thread.join(1.0)

    def _write_all(self) -> None:
        while not (self._closed and not self._lines):
            self._something.wait()
            if not self._closed:
                time.sleep(_FLUSH_SECONDS)  # lines come in bursts; one wake-up and one write serve them all
            self._something.clear()
            lines, self._lines = self._lines, []
            chunk = b"".join(map(self._encode, lines))
            try:
                while chunk:
                    chunk = chunk[os.write(self._descriptor, chunk) :]
            except OSError:
                self.dropped += chunk.count(b"\n")

    def _encode(self, line: dict[str, Any]) -> bytes:
        """One encoded line; empty if it cannot be encoded, so that the next lines are still written."""
        try:
            return (_encode_text if self._as_text else _encode_json)(_with_date(line)) + b"\n"
        except Exception:  # noqa: BLE001  a value may raise anything, and the log is where it would be reported
            self.dropped += 1
            return b""


def _encode_json(line: dict[str, Any]) -> bytes:
    try:
        return _encode_plain(line)
    except UnicodeEncodeError:  # a lone surrogate, as file names may contain
        return _encode_plain({name: _escape(value) for name, value in line.items()})


def _escape(value: Any) -> Any:
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _encode_text(line: dict[str, Any]) -> bytes:
    moment, event = line.pop("time"), line.pop("event")
    words = " ".join(f"{key}={value!r}" if isinstance(value, str) else f"{key}={value}" for key, value in line.items())
    return f"{moment} {event} {words}".encode("utf-8", "backslashreplace")


def _with_date(line: dict[str, Any]) -> dict[str, Any]:
    seconds, milliseconds = divmod(int(line["time"] * 1000), 1000)
    line["time"] = f"{_write_date(seconds)}.{milliseconds:03}Z"
    return line


@lru_cache(maxsize=8)  # lines come in bursts
def _write_date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


class LogBridge(logging.Handler):
    """Passes records of Python's logging on to a `Log`."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record, with its traceback as a field."""
        try:
            fields: dict[str, Any] = {"level": record.levelname.lower(), "logger": record.name}
            fields["message"] = record.getMessage()
            if record.exc_info:
                fields["traceback"] = logging.Formatter().formatException(record.exc_info)
        except Exception:  # noqa: BLE001  the record cannot be formatted
            self.handleError(record)
        else:
            self._log.write("log", **fields)


class Telemetry(Collector):
    """Counts and logs outcomes, sessions and refusals: the engine's `Observer`. One per server."""

    def __init__(self, log: Log, facts: Facts, *, shows_content: bool = False) -> None:
        self.log = log
        self.ran_at = 0.0  # when the latest program or cell had its outcome, as `time.monotonic` counts
        self._shows_content = shows_content
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        PlatformCollector(registry=self._registry)
        self._registry.register(_FactsCollector(facts, log))
        self._executions: Counter[tuple[str, str]] = Counter()  # by language and status
        self._cells: Counter[tuple[str, str]] = Counter()  # by language and status
        self._refusals: Counter[tuple[str, str]] = Counter()  # by status and code
        self._queue = _Histogram(_SECONDS)
        self._memory = _Histogram(_BYTES)
        self._run: dict[str, _Histogram] = {}  # by language
        self._cell: dict[str, _Histogram] = {}  # by language
        self._registry.register(self)

    def executed(self, execution: Execution, outcome: Outcome) -> None:
        """An execution has its outcome, whatever that is."""
        self.ran_at = time.monotonic()
        usage = outcome.usage
        self._executions[outcome.language, str(outcome.status)] += 1
        self._queue.add(usage.queue_seconds)
        run = self._run.get(outcome.language)
        if run is None:
            run = self._run[outcome.language] = _Histogram(_SECONDS)
        run.add(usage.wall_seconds)
        if usage.memory_peak_bytes:
            self._memory.add(usage.memory_peak_bytes)
        self._log_outcome("execution", execution, outcome)

    def ran_cell(self, session_id: str, cell: Execution, outcome: Outcome) -> None:
        """A cell of a session has its outcome, whatever that is."""
        self.ran_at = time.monotonic()
        self._cells[outcome.language, outcome.status.value] += 1
        self._cell.setdefault(outcome.language, _Histogram(_SECONDS)).add(outcome.usage.wall_seconds)
        self._log_outcome("cell", cell, outcome, session=session_id, cell=outcome.cell)

    def left_cell(self, session_id: str, cell: Execution, cell_id: str) -> None:
        """The client hung up, so its cell was interrupted or never started."""
        status = Status.CANCELLED.value
        self._cells[cell.language, status] += 1
        self.log.write(
            "cell", id=cell_id, session=session_id, caller=cell.caller, language=cell.language, status=status
        )

    def opened(self, caller: str, session: SessionState) -> None:
        """A session was opened, or branched from another."""
        self.log.write(
            "session_opened",
            id=session.id,
            caller=caller,
            language=session.language,
            environment=session.environment,
            parent=session.parent,
        )

    def ended(self, session_id: str, reason: str, cells: int) -> None:
        """A session has ended after so many cells."""
        self.log.write("session_ended", id=session_id, reason=reason, cells=cells)

    def _log_outcome(self, event: str, execution: Execution, outcome: Outcome, **more: Any) -> None:
        usage = outcome.usage
        line = {
            "time": time.time(),
            "event": event,
            "id": outcome.id,
            "caller": execution.caller,
            "language": outcome.language,
            "status": str(outcome.status),
            "exit_code": outcome.exit_code,
            "signal": outcome.signal,
            "wall_seconds": usage.wall_seconds,
            "cpu_seconds": usage.cpu_seconds,
            "memory_peak_bytes": usage.memory_peak_bytes,
            "queue_seconds": usage.queue_seconds,
            **more,
        }
        if self._shows_content:
            line |= {"code": execution.code, "stdout": outcome.stdout, "stderr": outcome.stderr}
        self.log.put(line)

    def refused(self, status: int, code: str) -> None:
        """A request was answered with an error."""
        self._refusals[str(status), code] += 1

    def expose(self) -> bytes:
        """All metrics, in the text format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The counts as metrics."""
        for name, meaning, names, counts in (
            ("belljar_executions", "Programs that have an outcome.", ["language", "status"], self._executions),
            ("belljar_cells", "Cells of sessions that have an outcome.", ["language", "status"], self._cells),
            ("belljar_refusals", "Requests answered with an error.", ["status", "code"], self._refusals),
        ):
            yield _counted(name, meaning, names, counts)
        for name, meaning, histograms in (
            ("belljar_run_seconds", "Time a program ran.", self._run),
            ("belljar_cell_seconds", "Time a cell of a session ran.", self._cell),
        ):
            run = HistogramMetricFamily(name, meaning, labels=["language"])
            for language, histogram in histograms.items():
                run.add_metric([language], histogram.buckets(), histogram.total)
            yield run
        for name, meaning, histogram in (
            ("belljar_queue_seconds", "Time spent waiting for a slot.", self._queue),
            ("belljar_memory_peak_bytes", "Peak memory of a program.", self._memory),
        ):
            yield HistogramMetricFamily(name, meaning, buckets=histogram.buckets(), sum_value=histogram.total)


def _counted(
    name: str, meaning: str, labels: list[str], counts: Mapping[tuple[str, str], int] | Mapping[tuple[str], int]
) -> Metric:
    family = CounterMetricFamily(name, meaning, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


class _Histogram:
    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.total = 0.0
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative, as Prometheus expects them."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(map(float, self._counts)), strict=True))


class _FactsCollector(Collector):
    """The engine's own numbers, read when they are requested."""

    _GAUGES = (
        ("running", "belljar_running", "Programs running now."),
        ("queued", "belljar_queue_depth", "Executions waiting for a slot."),
        ("max_running", "belljar_running_max", "Programs that may run at the same time."),
        ("max_queued", "belljar_queue_depth_max", "Executions that may wait."),
    )
    _SANDBOX_GAUGES = (
        ("ready_guests", "belljar_ready_guests", "Jailed forks waiting for a program."),
        ("guests", "belljar_guests", "Jailed forks in all."),
        ("zygotes", "belljar_zygotes", "Warm processes."),
        ("containers", "belljar_containers", "Warm containers."),
        ("runners", "belljar_runners", "Processes that run programs for the server."),
    )
    _SANDBOX_COUNTERS = (
        (
            "sandbox_faults",
            "belljar_sandbox_faults",
            "Programs that could not be run: faults of the sandbox.",
        ),
        ("zygotes_replaced", "belljar_zygotes_replaced", "Warm processes that were replaced."),
        ("runners_replaced", "belljar_runners_replaced", "Runners that ended and were replaced."),
        ("network_connections", "belljar_network_connections", "Connections that programs made to the internet."),
        ("network_refused", "belljar_network_refused", "Connections of programs that were refused."),
        ("network_sent_bytes", "belljar_network_sent_bytes", "Bytes that programs sent to the internet."),
        ("network_received_bytes", "belljar_network_received_bytes", "Bytes that programs received from the internet."),
        ("containers_started", "belljar_containers_started", "Containers that were started."),
        ("containers_replaced", "belljar_containers_replaced", "Containers that died and were replaced."),
    )

    _SESSION_GAUGES = (
        ("open", "belljar_sessions", "Sessions open now."),
        ("busy", "belljar_sessions_busy", "Sessions in which a cell runs."),
        ("max_open", "belljar_sessions_max", "Sessions that may be open at the same time."),
    )
    _SESSION_COUNTERS = (
        ("opened", "belljar_sessions_opened", "Sessions that were opened, branches not counted."),
        ("branched", "belljar_sessions_branched", "Sessions that were made as a branch of another."),
    )

    def __init__(self, facts: Facts, log: Log) -> None:
        self._facts = facts
        self._log = log

    def collect(self) -> Iterator[Metric]:
        facts = self._facts()
        sandbox = facts.get("sandbox", {})
        for key, name, meaning in self._GAUGES:
            yield GaugeMetricFamily(name, meaning, facts.get(key, 0))
        for key, name, meaning in self._SANDBOX_GAUGES:
            yield GaugeMetricFamily(name, meaning, sandbox.get(key, 0))
        for key, name, meaning in self._SANDBOX_COUNTERS:
            yield CounterMetricFamily(name, meaning, sandbox.get(key, 0))
        sessions = facts.get("sessions", {})
        for key, name, meaning in self._SESSION_GAUGES:
            yield GaugeMetricFamily(name, meaning, sessions.get(key, 0))
        for key, name, meaning in self._SESSION_COUNTERS:
            yield CounterMetricFamily(name, meaning, sessions.get(key, 0))
        ended = {(reason,): count for reason, count in sessions.get("ended", {}).items()}
        yield _counted("belljar_sessions_ended", "Sessions that have ended, by reason.", ["reason"], ended)
        calls = CounterMetricFamily("belljar_tool_calls", "Tool calls by programs.", labels=["tool", "result"])
        for labels, count in facts.get("tools", {}).get("calls", {}).items():
            calls.add_metric(labels, count)
        yield calls
        yield CounterMetricFamily(
            "belljar_log_lines_dropped", "Log lines that could not be written.", self._log.dropped
        )


def set_up_logging(log: Log, *, is_debugging: bool) -> None:
    """Send the records of Python's loggers to `log`."""
    logging.basicConfig(handlers=[LogBridge(log)], level=logging.DEBUG if is_debugging else logging.INFO, force=True)
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.raiseExceptions = is_debugging
    sys.excepthook = _report_to(log)


def _report_to(log: Log) -> Callable[..., None]:
    def report(kind: type[BaseException], error: BaseException, _traceback: object) -> None:
        log.write("fatal", message=f"{kind.__name__}: {error}")

    return report
