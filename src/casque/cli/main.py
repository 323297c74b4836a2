"""Main: `queuectl`, from its arguments to its exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from casque.cli.output import INTERRUPTED, NOT_SO, NOWHERE, code_of, complain
from casque.errors import CasqueError
from casque.system.terminal_text import sentence

DEBUG_VARIABLE = "CASQUE_DEBUG"
_APP = "casque.cli.app"
"""The module of every command but the quick `enqueue`."""


def main() -> NoReturn:
    _open_streams()
    code = _flushed(exit_code(lambda: _dispatch(sys.argv[1:])))
    if _APP not in sys.modules:
        # A quick `enqueue` has closed its store. sys.exit would clear every module, which takes a
        # sixth of the time of the whole command.
        _exit_now(code)
    _leave(code)


def leave_with(call: Callable[[], int]) -> NoReturn:
    """End this process with the exit code of the call. Every error becomes one line on stderr."""
    _open_streams()
    _leave(_flushed(exit_code(call)))


def _leave(code: int) -> NoReturn:
    if code == INTERRUPTED:
        _exit_now(code)  # sys.exit would wait for a thread that waits for a hanging storage
    sys.exit(code)


def _exit_now(code: int) -> NoReturn:
    sys.stderr.flush()
    os._exit(code)


def run(arguments: Sequence[str]) -> int:
    """Run a command in this process. Returns its exit code."""
    return exit_code(lambda: _dispatch(arguments))


def exit_code(call: Callable[[], int]) -> int:
    """Return the result of the call. For an error, print one line and return its exit code."""
    try:
        return call()
    except CasqueError as error:
        complain(str(error))
        return code_of(error)
    except KeyboardInterrupt as interrupt:  # its text says what was done so far, if any
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
            f"{type(error).__name__}: {sentence(str(error))} This should not happen: please "
            f"report it, with the traceback that {DEBUG_VARIABLE}=1 prints."
        )
        return NOT_SO


def _dispatch(arguments: Sequence[str]) -> int:
    if "enqueue" in arguments:
        from casque.cli.enqueue.fast_args import read_arguments

        request = read_arguments(arguments)
        if request is not None:
            from casque.cli.enqueue.one import enqueue_one

            return enqueue_one(request)
    # Imported late: typer and rich are slow to load (see casque.cli.enqueue).
    from casque.cli.app import invoke

    return invoke(arguments)


def _open_streams() -> None:
    """Replace a closed stdout or stderr by /dev/null; escape unencodable characters."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115 - until the exit
        else:
            stream.reconfigure(errors="backslashreplace")


def _flushed(code: int) -> int:
    """Flush stdout; at exit Python would print the error itself. Returns the exit code."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = NOWHERE
    except OSError as error:
        if not code:  # otherwise an error was printed already
            complain(f"the output could not be written: {error.strerror}.")
            code = NOT_SO
    else:
        return code
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code
