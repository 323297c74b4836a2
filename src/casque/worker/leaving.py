"""Leaving: how a worker's process ends, whatever its tasks left behind."""

from __future__ import annotations

import logging
import os
import sys
import threading

PATIENCE_SECONDS = 2.0
"""How long threads that were left running may take to end by themselves."""

_log = logging.getLogger("casque.worker")


def leave(code: int, *, patience_seconds: float = PATIENCE_SECONDS) -> int:
    """The exit code to end with; the process will be gone a moment later, come what may.

    At its end Python joins every thread that is no daemon. Most end by then, as
    those of an idle executor do, which are told to. A thread that a task left in
    an endless loop would keep the process for ever; it is named in the log, and
    the process leaves without it.
    """
    main = threading.current_thread()

    def see_to_it() -> None:
        threading.Event().wait(patience_seconds)
        others = [one for one in threading.enumerate() if one is not main and not one.daemon]
        left = ", ".join(one.name for one in others)
        _log.warning(
            "a task left something running that keeps the process from ending (%s); "
            "it is left behind",
            f"threads: {left}" if left else "an exit handler",
        )
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError):  # nobody reads it any more
                continue
        os._exit(code)

    threading.Thread(target=see_to_it, name="casque-leaving", daemon=True).start()
    return code
