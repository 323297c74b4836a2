"""Main: `queuectl`, from its arguments to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from casque.cli.output import INTERRUPTED, NOT_SO, NOWHERE, code_of, complain
from casque.errors import CasqueError

DEBUG_VARIABLE = "CASQUE_DEBUG"


def main() -> NoReturn:
    leave_with(lambda: _dispatch(sys.argv[1:]))


def leave_with(call: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of the call. Every error becomes one line on stderr."""
    _open_streams()
    code = _flushed(exit_code(call))
    if code == INTERRUPTED:
        sys.stderr.flush()
        os._exit(code)  # sys.exit would wait for a thread that waits for a hanging storage
    sys.exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command in this process; its exit code."""
    return exit_code(lambda: _dispatch(arguments))


def exit_code(call: Callable[[], int]) -> int:
    """The result of the call, or the exit code of its error, which is printed on one line."""
    try:
        return call()
    except CasqueError as error:
        complain(str(error))
        return code_of(error)
    except KeyboardInterrupt as interrupt:  # the command may say what was done by then
        complain(str(interrupt) or "interrupted.")
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


def _dispatch(arguments: Sequence[str]) -> int:
    if "enqueue" in arguments:
        from casque.cli.enqueue.fast_args import read_arguments

        request = read_arguments(arguments)
        if request is not None:
            from casque.cli.enqueue.one import enqueue_one

            return enqueue_one(request)
    # Late: see casque.cli.enqueue for how long typer and rich take to load.
    from casque.cli.app import invoke

    return invoke(arguments)


def _open_streams() -> None:
    """Open closed streams on /dev/null; escape letters that their encoding lacks."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - for ever
        else:
            stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """Flush stdout here: at the exit, Python would report an error in its own way."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = NOWHERE
    except OSError as error:
        if not code:  # else an error was printed already
            complain(f"the output could not be written: {error.strerror}.")
            code = NOT_SO
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
