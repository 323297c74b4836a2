"""Main: `queuectl`, from its arguments to its exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from casque.cli.exits import INTERRUPTED, code_of, complain
from casque.errors import CasqueError


def main() -> NoReturn:
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Carry out a command; its exit code."""
    try:
        # Late: typer and rich take ten times as long to load as a job to be enqueued.
        from casque.cli.group import invoke

        return invoke(arguments)
    except CasqueError as error:
        complain(str(error))
        return code_of(error)
    except KeyboardInterrupt:
        complain("interrupted.")
        return INTERRUPTED
