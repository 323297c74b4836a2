"""Location: which store a command works on, when it is not told: by a variable, or the default."""

from __future__ import annotations

import os

STORE_VARIABLE = "CASQUE_STORE"


def address(given: str | None) -> str:
    """What `--store` says, else CASQUE_STORE, else the user's own file."""
    return given or os.environ.get(STORE_VARIABLE) or default_address()


def default_address() -> str:
    """A SQLite file in the user's data directory."""
    from platformdirs import user_data_path

    return str(user_data_path("casque", appauthor=False) / "queue.db")
