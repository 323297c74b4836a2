"""Notes: what a command is waiting for, said on a terminal while it waits."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def live_note() -> Iterator[Callable[[str], None]]:
    """Gives what shows a line in place of the one before. When stderr is no terminal: nothing."""
    if not sys.stderr.isatty():
        yield lambda _text: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
