"""Many processes that use a new queue at once; and queues inside each other."""

from __future__ import annotations

from typing import Any

import pytest

from casque import CasqueError, InvalidError, Queue, StorageError
from casque.testing.processes import in_processes, meeting_of
from tests.ledger.children import enqueue_one, enqueue_or_wait
from tests.ledger.places import FolderPlace, Place, ServerPlace
from tests.ledger.refusals import message, refused
from tests.servers.client import ROOT

PROCESSES = 20


@pytest.fixture(autouse=True)
def found_by_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes import these tests, however pytest was started."""
    monkeypatch.syspath_prepend(str(ROOT))


def at_once(place: Place, work: Any, count: int) -> list[Any]:
    """Return the reports of this many processes. All finish importing before the first starts."""
    return in_processes(place.url, count, work, (meeting_of(count),))


def test_jobs_enqueued_while_the_queue_is_created_are_there_once(place: Place) -> None:
    told = at_once(place, enqueue_one, PROCESSES)
    assert len(told) == PROCESSES
    [first] = [id for id, duplicate in told if id == "the same" and not duplicate]
    new = [id for id, duplicate in told if not duplicate]
    assert all(id == first for id, duplicate in told if duplicate)
    with Queue(place.url) as q:
        jobs = q.read_state().jobs
        assert sorted(job.id for job in jobs) == sorted(new)
        assert len({job.payload for job in jobs}) == len(new) == 15
    # A late racing create may have left its probe: it is deleted after ten minutes.
    kinds = {key.partition("/")[0] for key in place.objects()}
    assert kinds <= {"format", "log", "waiting", "probe"}


def test_a_dequeue_that_waits_before_the_queue_exists_gets_its_jobs(place: Place) -> None:
    told = at_once(place, enqueue_or_wait, 16)
    brought = [id for what, id in told if what == "brought"]
    assert len(set(brought)) == 8
    assert sorted(brought) == sorted(id for what, id in told if what == "got")
    with Queue(place.url) as q:
        assert q.stats().total == 0


# -- one inside of the other ---------------------------------------------------

INNER = ("x", "log/x", "probe", "waiting", "formats", "a/b/c")


def inside(place: Place, name: str) -> Place:
    """Return the place of that name inside this one."""
    if isinstance(place, FolderPlace):
        return FolderPlace(place.path / name)
    assert isinstance(place, ServerPlace)
    scheme, _, rest = place.name.partition("://")
    return ServerPlace(place.server, scheme, f"{rest.partition('/')[2]}/{name}")


def use(q: Queue, *ids: str) -> None:
    """Add these jobs and finish one, and check that there are no others."""
    for id in ids:
        q.enqueue("e", id=id)
    q.ack(q.dequeue(id=ids[0])[0])
    assert [job.id for job in q.read_state().jobs] == list(ids[1:])


@pytest.mark.parametrize("name", INNER)
def test_a_queue_inside_of_another_is_kept_apart(place: Place, name: str) -> None:
    inner = inside(place, name)
    with Queue(place.url) as q, Queue(inner.url) as r:
        use(q, "a", "b")
        use(r, "c", "a", "d")
        q.enqueue("e", id="e")
        for address, ids in ((place.url, ["b", "e"]), (inner.url, ["a", "d"])):
            with Queue(address) as fresh:
                assert [job.id for job in fresh.read_state().jobs] == ids


@pytest.mark.parametrize("name", [*INNER, "log"])
def test_a_queue_around_another_is_refused(place: Place, name: str) -> None:
    inner = inside(place, name)
    with Queue(inner.url) as r, Queue(place.url) as q:
        use(r, "a", "b")
        before = place.objects()
        told = refused(q, lambda q: q.enqueue("e"), InvalidError)
        assert f"{inner.name}/" in told
        assert "is not ours" in told
        assert place.objects() == before
        assert [job.id for job in r.read_state().jobs] == ["b"]


def test_a_queue_in_the_log_of_another_is_refused(place: Place) -> None:
    with Queue(place.url) as q:
        use(q, "a", "b")
    [log] = {key.rpartition("/")[0] for key in place.everything() if "/log/" in key}
    with Queue(place.url) as q, Queue(inside(place, log).url) as r:
        before = place.objects()
        assert "is not ours" in refused(r, lambda q: q.enqueue("e"), InvalidError)
        assert place.objects() == before
        assert [job.id for job in q.read_state().jobs] == ["b"]


@pytest.mark.parametrize("place", ["folder"], indirect=True)
def test_a_queue_in_the_place_of_a_file_of_another_is_refused(place: Place) -> None:
    with Queue(place.url) as q:
        use(q, "a", "b")
        for key in place.everything():
            with Queue(inside(place, key).url) as r, pytest.raises(StorageError) as caught:
                r.enqueue("e")
            assert "A file is where a folder should be" in message(caught.value)
        assert [job.id for job in q.read_state().jobs] == ["b"]


@pytest.mark.parametrize("name", ["format", "log/00000000000000000001"])
@pytest.mark.parametrize("place", ["s3"], indirect=True)
def test_names_that_only_a_bucket_allows_are_kept_apart_or_refused(place: Place, name: str) -> None:
    with Queue(place.url) as q, Queue(inside(place, name).url) as r:
        use(q, "a", "b")
        try:
            use(r, "c", "d")
        except CasqueError as error:
            message(error)
        with Queue(place.url) as fresh:
            assert [job.id for job in fresh.read_state().jobs] == ["b"]
