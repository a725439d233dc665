"""A progress bar on standard error for many programs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sized


@contextlib.contextmanager
def progress_of(programs: object, is_shown: bool) -> Iterator[Callable[[object], None]]:
    """Give a function to call, from any thread, with each program that is done."""
    if not is_shown:
        yield lambda _: None
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
        yield lambda _: bar.advance(task)
