"""Folders: the watched folders, their files, and which of them are wanted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from casque.errors import InvalidError

Identity = tuple[int, int]
"""Device and inode, which differ for a new folder at the same path."""


class Folder:
    """A watched folder. Its path is absolute and has no links."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        patterns: Iterable[str] = ("*",),
        is_recursive: bool = False,
        skips: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """Raises InvalidError if there is no such folder. `skips` leaves out more files."""
        self.path = _existing(path)
        self._start = f"{self.path.rstrip('/')}/"
        self._patterns = tuple(map(_checked, patterns)) or ("*",)
        if not is_recursive and (inner := next((one for one in self._patterns if "/" in one), "")):
            raise InvalidError(
                f"the pattern {inner!r} is for files in folders inside this one: watch those too, "
                "with --recursive (recursive=True)."
            )
        self._is_recursive = is_recursive
        self._skips = skips

    @property
    def identity(self) -> Identity | None:
        """None while there is no folder at its path."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - called several times per second
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if Path(self.path).is_dir() else None

    def has(self, path: str) -> bool:
        """True if a path is in this folder, at whatever depth."""
        return path.startswith(self._start)

    def wants(self, path: str) -> bool:
        """True if a file at this path is watched. A name that is not UTF-8 cannot be stored."""
        if not self.has(path) or self._skips(path) or not _is_text(path):
            return False
        inner = path.removeprefix(self._start)
        above, _, name = inner.rpartition("/")
        if above and not (self._is_recursive and self._enters(above)):
            return False
        return any(_matches(pattern, inner, name) for pattern in self._patterns)

    def files(self, under: str | None = None) -> Iterator[str]:
        """The wanted files of this folder, or of `under` in it. Follows no links to folders."""
        at = self.path if under is None else under
        if under is not None:
            is_inside = self._is_recursive and self.has(under)
            if not is_inside or not self._enters(under.removeprefix(self._start)):
                return
        for folder, names, files in os.walk(at):
            if not self._is_recursive:
                names.clear()
            names[:] = [name for name in names if not name.startswith(".")]
            for name in files:
                path = f"{folder.rstrip('/')}/{name}"
                if self.wants(path):
                    yield path

    @staticmethod
    def _enters(inner: str) -> bool:
        return not any(part.startswith(".") for part in inner.split("/"))


def _existing(path: str | os.PathLike[str]) -> str:
    if not isinstance(path, str | os.PathLike):
        raise InvalidError(f"expected the path of a folder, got {type(path).__name__}.")
    given = os.fspath(path)
    try:
        is_folder = bool(given) and Path(given).is_dir()
        found = str(Path(given).resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidError(f"{given!r} cannot be watched: {error}.") from None
    if not is_folder:
        raise InvalidError(f"{given!r} is not a folder: name a folder that exists, or create it.")
    if not _is_text(found):
        raise InvalidError(f"the path {given!r} is not UTF-8 text, so it cannot be stored.")
    return found


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _checked(pattern: object) -> str:
    if isinstance(pattern, str) and pattern and not pattern.startswith("/"):
        return pattern
    raise InvalidError(
        f"expected a pattern for the names of files, such as *.pdf, got {pattern!r}; a pattern "
        "with a slash is for paths inside the folder."
    )


def _matches(pattern: str, inner: str, name: str) -> bool:
    # As in a shell, * does not match the names of hidden files: they are often unfinished.
    if name.startswith(".") and not pattern.rpartition("/")[2].startswith("."):
        return False
    return fnmatchcase(inner if "/" in pattern else name, pattern)


def files_of_store(name: str) -> Callable[[str], bool]:
    """A test for files of a local store, because they change with every job."""
    if "://" in name and not name.startswith("file://"):
        return lambda _: False
    store = os.path.realpath(name.removeprefix("file://"))
    folder, _, base = store.rpartition("/")
    hidden = f"{folder}/.{base}"

    def is_of_store(path: str) -> bool:
        return path == store or path.startswith((f"{store}-", f"{store}/", hidden))

    return is_of_store
