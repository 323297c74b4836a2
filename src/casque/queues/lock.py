"""Lock: one holder (or n) over a store, for any process on any host.

A lock is a record with an expiry. Its holder renews it, and it expires after the holder has died.
`token` rises from holder to holder, so that the resource behind the lock can reject late writes
from a holder that lost the lock.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Self

from casque import checks
from casque.errors import CASConflictError, InvalidError, LeaseLostError, StorageError
from casque.queues.heartbeat import BEATS_PER_LEASE
from casque.queues.lease_keeper import Keeper
from casque.queues.runner import Runner, runner_for, warn_inside_loop
from casque.queues.session import Session
from casque.record import LOCK, Record
from casque.rules.operations import PutRecord
from casque.stores.url import StoreAddress, open_store
from casque.system.clock import Stopwatch

DEFAULT_LEASE = timedelta(seconds=30)
_POLL_US = 250_000

log = logging.getLogger("casque")


class Lock:
    """Use it with `with` or `async with`. It waits up to `timeout` for a slot (None: forever).

    Raises CASConflictError if no slot became free in time. A held lock is lost, for example, if the
    storage does not answer for a whole `lease`. Then an async body is cancelled and LeaseLostError
    is raised. A sync body can check `lost`, and LeaseLostError is raised at its end. Not reentrant;
    make one object per holder.
    """

    def __init__(
        self,
        store: StoreAddress,
        name: str,
        *,
        slots: int = 1,
        lease: timedelta = DEFAULT_LEASE,
        timeout: timedelta | None = None,
    ) -> None:
        self._name = checks.name(name, "name")
        self._slots = checks.whole(slots, "slots", 1)
        self._lease_us = checks.positive_span(lease, "lease")
        self._timeout_us = None if timeout is None else checks.span(timeout, "timeout")
        self._store = open_store(store)
        self._owns_store = self._store is not store
        self._clock = self._store.clock
        self._session: Session | None = None
        self._runner: Runner | None = None
        self._record: Record | None = None
        self._token = 0
        self._keeper: Keeper | None = None

    @property
    def token(self) -> int:
        """The fencing token of this holder, which is higher than that of every earlier holder."""
        if self._record is None:
            raise InvalidError(f"lock {self._name!r} is not held.")
        return self._token

    @property
    def lost(self) -> bool:
        """True if the lock was lost while it was held."""
        return self._keeper is not None and self._keeper.is_lost

    async def __aenter__(self) -> Self:
        self._begin(blocking=False)
        try:
            await self._acquire(blocking=False)
        except BaseException:
            await self._end()
            raise
        self._keeper = self._make_keeper()
        self._keeper.start()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        assert self._keeper is not None
        is_lost = await self._keeper.stop(raised=error)
        try:
            await self._release()
        finally:
            await self._end()
        if is_lost:
            self._raise()

    def __enter__(self) -> Self:
        warn_inside_loop("`with Lock(…)`", "`async with Lock(…)`")
        self._begin(blocking=self._store.blocking)
        self._runner = runner_for(self._store)
        try:
            self._runner.run(self._acquire(blocking=self._store.blocking))
        except BaseException:
            self._runner.run(self._end())
            self._runner.close()
            raise
        self._keeper = self._make_keeper()
        self._keeper.start_thread()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        assert self._keeper is not None
        assert self._runner is not None
        is_lost = self._keeper.stop_thread(raised=error)
        runner, self._runner = self._runner, None
        try:
            runner.run(self._release())
        finally:
            runner.run(self._end())
            runner.close()
        if is_lost:
            self._raise()

    def _begin(self, *, blocking: bool) -> None:
        if self._record is not None:
            raise InvalidError(f"this Lock on {self._name!r} is already held; make another one.")
        self._session = Session(self._store, owner="Lock", blocking=blocking)

    async def _acquire(self, *, blocking: bool) -> None:
        watch = Stopwatch(self._clock)
        bell = self._clock.bell(blocking=blocking)
        with self._store.listen(bell):
            while not await self._try_slots():
                left = _POLL_US
                if self._timeout_us is not None:
                    left = min(left, self._timeout_us - watch.elapsed_us())
                if left <= 0:
                    raise CASConflictError(
                        f"lock {self._name!r}: no slot came free in "
                        f"{timedelta(microseconds=self._timeout_us or 0)}. Try again later, or "
                        "raise `timeout`."
                    )
                await bell.wait(left)

    async def _try_slots(self) -> bool:
        assert self._session is not None
        for slot in range(self._slots):
            # The slot comes first: a name may contain any character.
            held = await self._session.take(LOCK, f"{slot}:{self._name}", self._lease_us)
            if held is not None:
                self._record, self._token = held, held.version
                return True
        return False

    async def _renew(self) -> bool:
        assert self._session is not None
        held = self._record
        assert held is not None
        renewal = PutRecord(held.kind, held.name, held.value, held.version, self._lease_us)
        try:
            self._record = await self._session.submit(renewal)
        except CASConflictError as conflict:
            raise LeaseLostError(str(conflict), cause=conflict) from conflict
        return True

    async def _renew_from_thread(self) -> bool:
        assert self._runner is not None
        return self._runner.run(self._renew())

    def _make_keeper(self) -> Keeper:
        beat = self._renew if self._runner is None else self._renew_from_thread
        every_us = max(self._lease_us // BEATS_PER_LEASE, 1)
        return Keeper(beat, every_us, self._lease_us, self._clock)

    async def _release(self) -> None:
        assert self._session is not None
        held, self._record = self._record, None
        assert held is not None
        try:
            await self._session.delete(held)
        except StorageError as error:
            # The work under the lock is done, and the lock expires by itself: not a failure.
            log.warning(
                "lock %r could not be released and ends when its lease expires: %s",
                self._name,
                error,
            )

    async def _end(self) -> None:
        assert self._session is not None
        await self._session.close()
        if self._owns_store:
            await self._store.close()  # it opens again the next time the lock is taken

    def _raise(self) -> None:
        assert self._keeper is not None
        loss = self._keeper.reason
        raise LeaseLostError(
            f"lock {self._name!r} was lost while it was held: another caller may have it. ({loss})",
            cause=loss,
        ) from loss
