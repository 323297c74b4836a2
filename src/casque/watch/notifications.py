"""Notifications: the changes that the kernel reports, through the package watchfiles."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from casque.errors import InvalidError
from casque.watch.folders import Folder, Identity
from casque.watch.report import Report

_GATHER_MS = 200
"""Changes of a burst are gathered for at most this long."""
_STEP_MS = 50
_TICK_MS = 200
_UNDECODABLE = "Unable to decode path"
_PAUSE_SECONDS = 0.5


class Changes(NamedTuple):
    """Paths that may have changed since the last item; often none."""

    paths: frozenset[str]
    appeared: tuple[Folder, ...] = ()
    """Folders that are newly watched: at the start, or after they returned."""


class _Watch(Protocol):
    def __call__(
        self,
        *paths: str,
        watch_filter: None,
        debounce: int,
        step: int,
        stop_event: threading.Event,
        rust_timeout: int,
        yield_on_timeout: bool,
        recursive: bool,
        ignore_permission_denied: bool,
    ) -> Iterator[set[tuple[int, str]]]: ...


def load_watchfiles() -> _Watch:
    """The function that waits for changes. InvalidError if the package is missing."""
    try:
        from watchfiles import watch  # noqa: PLC0415 - an extra, for this alone
    except ImportError as error:
        raise InvalidError(
            "watching files needs a package that is not installed: pip install 'casque[watch]'.",
            cause=error,
        ) from error
    return watch  # type: ignore[return-value] # its generator is an iterator


def changes(
    folders: Sequence[Folder], stop: threading.Event, report: Report, *, is_recursive: bool
) -> Iterator[Changes]:
    """Yield several times per second, until `stop` is set. Raises InvalidError.

    A folder that vanishes is watched again when it is back. `appeared` names a folder once its
    changes are reported, so that a later scan misses nothing.
    """
    watch = load_watchfiles()
    watched: dict[Folder, Identity] = {}
    lost: set[Folder] = set()
    while not stop.is_set():
        there = _present(folders)
        for folder in folders:
            if folder not in there and folder not in lost:
                lost.add(folder)
                report.folder_vanished(folder.path)
            elif folder in there and folder in lost:
                lost.discard(folder)
                report.folder_returned(folder.path)
        appeared = tuple(one for one in there if watched.get(one) != there[one])
        watched = there
        if not there:
            if not stop.wait(_TICK_MS / 1_000):
                yield Changes(frozenset())
            continue
        batches = watch(
            *(folder.path for folder in there),
            watch_filter=None,
            debounce=_GATHER_MS,
            step=_STEP_MS,
            stop_event=stop,
            rust_timeout=_TICK_MS,
            yield_on_timeout=True,
            recursive=is_recursive,
            ignore_permission_denied=True,
        )
        try:
            for batch in batches:
                yield Changes(frozenset(path for _, path in batch), appeared)
                appeared = ()
                if _present(folders) != watched:
                    break
        except FileNotFoundError:  # a folder vanished before it was watched
            watched = {one: watched[one] for one in watched if one not in appeared}
        except (OSError, RuntimeError) as error:
            if _UNDECODABLE in str(error):
                # The name of a file is not UTF-8. The changes beside it are lost, so scan again.
                report.skipped(_named_in(error), "its name is not UTF-8 text; rename it")
                watched = {}
                stop.wait(_PAUSE_SECONDS)
                continue
            raise InvalidError(
                f"the system cannot watch so many files: {error}. Watch smaller folders, or raise "
                "fs.inotify.max_user_watches and max_user_instances (sysctl).",
                cause=error,
            ) from error


def _named_in(error: Exception) -> str:
    """The path between the quotes of a message."""
    return str(error).partition('"')[2].rpartition('"')[0]


def _present(folders: Sequence[Folder]) -> dict[Folder, Identity]:
    found = ((folder, folder.identity) for folder in folders)
    return {folder: identity for folder, identity in found if identity is not None}
