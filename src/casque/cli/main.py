"""Main: `queuectl`, from its arguments to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from casque.cli.output import INTERRUPTED, NOT_SO, NOWHERE, InterruptedAtError, code_of, complain
from casque.errors import CasqueError

DEBUG_VARIABLE = "CASQUE_DEBUG"


def main() -> NoReturn:
    _open_streams()
    code = _flushed(run(sys.argv[1:]))
    if code == INTERRUPTED:
        sys.stderr.flush()
        os._exit(code)  # a thread that waits for a storage which hangs would be waited for
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Carry out a command; its exit code. Whatever goes wrong is told in one line."""
    try:
        return _carried_out(arguments)
    except CasqueError as error:
        complain(str(error))
        return code_of(error)
    except KeyboardInterrupt:
        complain("interrupted.")
        return INTERRUPTED
    except InterruptedAtError as error:
        complain(str(error))
        return INTERRUPTED
    except BrokenPipeError:
        return NOWHERE
    except OSError as error:
        complain(f"{error.strerror or error}.")
        return NOT_SO
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        complain(
            f"{type(error).__name__}: {error}. This should not happen: please report it, with "
            f"what {DEBUG_VARIABLE}=1 shows."
        )
        return NOT_SO


def _carried_out(arguments: Sequence[str]) -> int:
    if "enqueue" in arguments:
        from casque.cli.enqueue.fast_args import order_of

        order = order_of(arguments)
        if order is not None:
            from casque.cli.enqueue.one import enqueue

            return enqueue(order)
    # Late: typer and rich take ten times as long to load as a job to be enqueued.
    from casque.cli.app import invoke

    return invoke(arguments)


def _open_streams() -> None:
    """A stream that was closed becomes one to nowhere; letters that it lacks become escapes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for ever
        else:
            stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """Write what is still to be written: at the exit Python would complain in its own way."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = NOWHERE
    except OSError as error:
        if not code:  # else it has been said
            complain(f"the output could not be written: {error.strerror}.")
            code = NOT_SO
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
