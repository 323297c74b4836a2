"""Process: telling the process that made something from its forks, without asking the system.

Read it as `process.generation`: a name that is imported from here stays as it was.
"""

from __future__ import annotations

import os

generation = 0
"""How many forks lie between this process and the one that loaded casque."""


def _forked() -> None:
    global generation  # noqa: PLW0603 - which process this is, there is only one answer to
    generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
