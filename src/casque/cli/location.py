"""Location: which store a command works on, when it is not told: by a variable, or the default."""

from __future__ import annotations

import os
from pathlib import Path

from casque.errors import InvalidError

STORE_VARIABLE = "CASQUE_STORE"


def address(given: str | None) -> str:
    """What `--store` says, else CASQUE_STORE, else the user's own file."""
    if given is not None and not given.strip():
        raise InvalidError("--store is empty: name a store, or leave the option out.")
    return given or os.environ.get(STORE_VARIABLE) or default_address()


def default_address() -> str:
    """A SQLite file in the user's data directory."""
    from platformdirs import user_data_path

    return str(user_data_path("casque", appauthor=False) / "queue.db")


def check_place(address: str, name: str) -> None:
    """InvalidError when the store of that address and name can hardly be the one that is meant."""
    if name.startswith("memory:"):
        raise InvalidError(
            "a store in memory would be gone with this command; choose a file, a folder or a "
            "bucket."
        )
    path = _path(name)
    if path is None:
        return
    if not _is_text(str(path.absolute())):
        raise InvalidError(
            f"the path of {name!r} is not UTF-8 text, and workers could not be told of it. Choose "
            "another place."
        )
    # Stores make the folders that they lack; for a path that a person has typed, one is enough.
    folder = path.parent
    if not folder.is_dir() and address != default_address():
        raise InvalidError(
            f"{name}: there is no folder {folder}. Check the path, or make it: mkdir -p {folder}"
        )


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # bytes that are none, as lone surrogates
        return False
    return True


def is_empty(name: str) -> bool:
    """Whether a store of this name is on this machine, and nothing is stored there yet."""
    path = _path(name)
    return path is not None and not path.exists()


def _path(name: str) -> Path | None:
    """The file or folder of a store of that name; None when it is elsewhere."""
    if "://" in name and not name.startswith("file://"):
        return None
    return Path(name.removeprefix("file://"))
