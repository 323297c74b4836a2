"""Stopped: what became of workers that were told to stop, for people and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from casque.cli.output import complain
from casque.cli.worker.fleet import named
from casque.worker.registry.entries import ManagerEntry, ProcessEntry, WorkerEntry


class Outcome(msgspec.Struct, frozen=True):
    """What became of it. Managers are among these when they had no worker."""

    told: list[ProcessEntry]
    gone: list[WorkerEntry]
    """Those that had died before."""
    left: list[ProcessEntry] | None
    """Of those that were told to stop, who has not ended; None: nobody has waited for it."""
    silent: list[ProcessEntry]
    """Of those, who is elsewhere, and was not heard of until the entry ran out."""
    others: list[WorkerEntry]
    """Who was not meant."""

    @property
    def is_done(self) -> bool:
        """Whether nobody is known to be left, or may be."""
        return not self.left and not self.silent

    @property
    def stopped(self) -> list[ProcessEntry]:
        names = {entry.name for entry in (*(self.left or ()), *self.silent)}
        return [] if self.left is None else [one for one in self.told if one.name not in names]

    def as_json(self) -> dict[str, list[dict[str, object]]]:
        def plain(entries: Sequence[ProcessEntry]) -> list[dict[str, object]]:
            return [{"name": one.name, "host": one.host, "pid": one.pid} for one in entries]

        told = self.told if self.left is None else [*self.left, *self.silent]
        return {"stopped": plain(self.stopped), "gone": plain(self.gone), "left": plain(told)}

    def tell(self) -> None:
        """On stdout what was done, and on stderr what was not."""
        if not self.told and not self.gone:
            print("No workers are running.")
            if self.others:
                print(f"Elsewhere there are {named(self.others)}: stop those with --all.")
        if self.gone:
            print(f"Removed {len(self.gone)} worker(s) that had died: {named(self.gone)}.")
        for whom, who in _grouped(self.stopped):
            print(f"Stopped {whom}: {who}.")
        for whom, who in _grouped(self.told if self.left is None else ()):
            print(f"Told {whom} to stop: {who}.")
        for whom, who in _grouped(self.left or ()):
            complain(
                f"{whom} have not ended yet: {who}. They still stop when their jobs end or their "
                "grace is over; see `queuectl worker list`."
            )
        for whom, who in _grouped(self.silent):
            complain(
                f"{whom} were not heard of any more: {who}. They have died, or are held up and "
                "go on later; see `queuectl worker list`."
            )


def _grouped(entries: Sequence[ProcessEntry]) -> Iterator[tuple[str, str]]:
    """Workers and managers, of each how many and which."""
    workers = [one for one in entries if not isinstance(one, ManagerEntry)]
    managers = [one for one in entries if isinstance(one, ManagerEntry)]
    if workers:
        yield f"{len(workers)} worker(s)", named(workers)
    if managers:
        yield f"{len(managers)} manager(s) without workers", named(managers)
