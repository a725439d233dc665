"""The progress bar of `run_many`, on standard error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sized


@contextlib.contextmanager
def progress_of(programs: object, is_shown: bool) -> Iterator[Callable[[], None]]:
    """Give a function to call, from any thread, whenever a program has ended."""
    if not is_shown:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("programs", total=len(programs) if isinstance(programs, Sized) else None)
        yield lambda: bar.advance(task)
