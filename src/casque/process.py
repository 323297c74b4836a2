"""Process: telling the process that made something from its forks, without asking the system."""

from __future__ import annotations

import os

_forks = 0


def generation() -> int:
    """How many forks lie between this process and the one that loaded casque."""
    return _forks


def _forked() -> None:
    global _forks  # noqa: PLW0603 - which process this is, there is only one answer to
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
