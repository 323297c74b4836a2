"""`app.watch`: files that change become the jobs of a task."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from casque import App, InvalidError, JobStatus, StorageError
from casque.record import WATCH, Record
from casque.stores.port import Answer
from casque.stores.sqlite.store import SqliteStore
from casque.testing.relays import Relay
from casque.watch import contents, watcher
from casque.worker.loading import load_app
from tests.watch.watching import Said, app_watch, put
from tests.worker.apps import beside, run_until_idle, wait_for
from tests.worker.shells import job_of


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


@pytest.fixture
def app(tmp_path: Path) -> Iterator[App]:
    with App(tmp_path / "jobs.db") as made:
        yield made


def watched(app: App) -> Any:
    @app.task
    def convert(path: str) -> str:
        return Path(path).read_text()

    return convert


def names(said: Said) -> list[str]:
    return [Path(path).name for path, is_duplicate in said.jobs if not is_duplicate]


def test_a_task_gets_the_path_of_each_file(app: App, inbox: Path) -> None:
    convert = watched(app)
    with app_watch(app, inbox, convert.using(priority=4)) as said:
        put(inbox / "a.txt", "content of a")
        wait_for("a job", lambda: said.jobs)
    run_until_idle(app)
    [job] = app.queue.read_state().jobs
    assert app.handle(job.id).result() == "content of a"
    assert (job.entrypoint, job.priority) == ("convert", 4)


def test_many_files_are_stored_in_one_commit(app: App, inbox: Path) -> None:
    convert = watched(app)
    with app_watch(app, inbox, convert) as said:
        for number in range(50):
            put(inbox / f"{number}", "x")
        wait_for("all jobs", lambda: len(said.jobs) == 50)
        commits = {job.created_us for job in app.queue.read_state().jobs}
    assert len(commits) < 10


def test_only_wanted_files_get_jobs(app: App, inbox: Path) -> None:
    (inbox / "deep" / ".git").mkdir(parents=True)
    os.mkfifo(inbox / "pipe.txt")
    with app_watch(app, inbox, watched(app), recursive=True, pattern=["*.txt", "in/*.md"]) as said:
        for path in ("a.txt", "b.pdf", ".hidden.txt", "deep/c.txt", "deep/.git/d.txt", "deep/e.md"):
            put(inbox / path, path)
        (inbox.parent / "new").mkdir()
        put(inbox.parent / "new" / "f.txt", "f")
        (inbox.parent / "new").rename(inbox / "in")  # a folder with files appears at once
        put(inbox / "in" / "g.md", "g")
        (inbox / "h\udcff.txt").write_text("not UTF-8")
        (inbox / "link.txt").symlink_to(inbox / "b.pdf")
        (inbox / "dangling.txt").symlink_to(inbox / "nowhere")
        wait_for("the wanted ones", lambda: len(said.jobs) >= 5)
        put(inbox / "last.txt", "last")
        wait_for("the last one", lambda: "last.txt" in names(said))
    assert sorted(names(said)) == ["a.txt", "c.txt", "f.txt", "g.md", "last.txt", "link.txt"]
    reasons = {one.partition(": ")[2] for one in said.trouble}
    assert reasons == {"its name is not UTF-8 text; rename it"}


def test_without_recursive_inner_folders_are_left_out(app: App, inbox: Path) -> None:
    (inbox / "deep").mkdir()
    with app_watch(app, inbox, watched(app), existing=True) as said:
        put(inbox / "deep" / "a", "a")
        put(inbox / "b", "b")
        wait_for("one", lambda: said.jobs)
    assert names(said) == ["b"]


def test_a_file_that_was_there_gets_a_job_when_its_content_changes(app: App, inbox: Path) -> None:
    for name in ("a", "b", "c"):
        put(inbox / name, name)
    with app_watch(app, inbox, watched(app)) as said:
        (inbox / "a").chmod(0o600)
        put(inbox / "b", "changed")
        wait_for("one", lambda: said.jobs)
        put(inbox / "later", "later")
        wait_for("two", lambda: len(said.jobs) == 2)
    assert names(said) == ["b", "later"]


def test_a_file_that_cannot_be_read_is_skipped_until_it_changes(
    app: App, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = contents.content_of

    def refuse(path: str) -> Any:
        if path.endswith("secret"):
            raise PermissionError(13, "Permission denied")
        return original(path)

    monkeypatch.setattr(watcher, "content_of", refuse)  # root may read everything
    with app_watch(app, inbox, watched(app)) as said:
        put(inbox / "secret", "x")
        wait_for("it is skipped", lambda: said.trouble)
        monkeypatch.setattr(watcher, "content_of", original)
        put(inbox / "secret", "y")
        wait_for("its job", lambda: said.jobs)
    assert said.trouble == [f"skipped {inbox}/secret: it cannot be read: Permission denied"]


def test_changes_that_the_kernel_did_not_report_are_found(
    app: App, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher.Watcher, "_touch", lambda *_: None)
    monkeypatch.setattr(watcher, "_SWEEP_US", 100_000)
    with app_watch(app, inbox, watched(app)) as said:
        put(inbox / "a", "a")
        wait_for("a job", lambda: said.jobs)
        put(inbox / "a", "another")
        wait_for("another", lambda: len(said.jobs) == 2)


# -- a job that rewrites its input ---------------------------------------------------------


def test_changes_while_a_job_runs_count_as_seen_at_its_end(app: App, inbox: Path) -> None:
    begun, end = threading.Event(), threading.Event()

    @app.task
    def rewrite(path: str) -> None:
        begun.set()
        assert end.wait(100)
        Path(path).write_text("rewritten")

    with beside(app), app_watch(app, inbox, rewrite) as said:
        put(inbox / "a", "a")
        assert begun.wait(100)
        put(inbox / "a", "from outside, missed")
        put(inbox / "b", "b")
        wait_for("the other file has a job", lambda: len(said.jobs) == 2)
        end.set()
        wait_for("both have ended", lambda: app.queue.stats().completed == 2)
        put(inbox / "c", "c")
        wait_for("a later change has its job", lambda: app.queue.stats().completed == 3)
        put(inbox / "a", "from outside")
        wait_for("a change after the end too", lambda: app.queue.stats().completed == 4)
    assert sorted(names(said)) == ["a", "a", "b", "c"]
    rewritten = [one.name for one in app.queue._run(app.store.records(WATCH))]
    assert len(rewritten) == 3


def test_a_change_after_a_job_that_wrote_nothing_gets_a_job(app: App, inbox: Path) -> None:
    convert = watched(app)
    with beside(app), app_watch(app, inbox, convert) as said:
        put(inbox / "a", "a")
        wait_for("it has run", lambda: app.queue.stats().completed == 1)
        put(inbox / "b", "b")
        wait_for("a later change has its job", lambda: len(said.jobs) == 2)
        put(inbox / "a", "another")
        wait_for("the change has its job", lambda: len(said.jobs) == 3)
    assert names(said) == ["a", "b", "a"]


def test_a_new_content_gets_a_job_while_the_first_job_waits(app: App, inbox: Path) -> None:
    with app_watch(app, inbox, watched(app)) as said:
        for number in range(3):
            put(inbox / "a", f"content {number}")
            wait_for("its job", lambda n=number: len(said.jobs) > n)  # type: ignore[misc]
    assert names(said) == ["a", "a", "a"]


def test_a_job_that_failed_and_waits_for_its_retry_has_not_ended(app: App, inbox: Path) -> None:
    convert = watched(app)
    with app_watch(app, inbox, convert) as said:
        put(inbox / "a", "a")
        wait_for("its job", lambda: said.jobs)
        [job] = app.queue.dequeue()
        put(inbox / "a", "half of it rewritten")
        app.queue.nack(job, delay=timedelta(hours=1), error="broken")
        put(inbox / "b", "b")
        wait_for("the other file has a job", lambda: len(said.jobs) == 2)
        app.queue.cancel(job.id)
        put(inbox / "c", "c")
        wait_for("the third file has a job", lambda: len(said.jobs) == 3)
    assert names(said) == ["a", "b", "c"]


def test_the_next_watcher_knows_the_jobs_of_the_one_before(app: App, inbox: Path) -> None:
    convert = watched(app)
    put(inbox / "a", "a")
    with app_watch(app, inbox, convert, existing=True) as first:
        wait_for("its job", lambda: first.jobs)
    [job] = app.queue.dequeue()
    put(inbox / "a", "rewritten by its job")
    with app_watch(app, inbox, convert, existing=True) as second:
        put(inbox / "b", "b")
        wait_for("the other file has a job", lambda: second.jobs)
        app.queue.ack(job)
        put(inbox / "c", "c")
        wait_for("the third file has a job", lambda: len(second.jobs) == 2)
    assert names(second) == ["b", "c"]
    with app_watch(app, inbox, convert, existing=True) as third:
        wait_for("contents that had jobs", lambda: len(third.jobs) == 2)
    assert names(third) == []


def test_a_content_that_its_job_left_is_forgotten_with_the_file(
    app: App, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_SWEEP_US", 100_000)

    @app.task
    def rewrite(path: str) -> None:
        Path(path).write_text("rewritten")

    def left() -> list[Record]:
        return app.queue._run(app.store.records(WATCH))

    with beside(app), app_watch(app, inbox, rewrite):
        put(inbox / "a", "a")
        wait_for("it is remembered", left)
        (inbox / "a").unlink()
        wait_for("it is forgotten", lambda: not left())


# -- the store -----------------------------------------------------------------------------


class Outage(Relay):
    """A store that can be switched off."""

    is_down = False

    async def commit(self, *args: Any, **options: Any) -> list[Answer]:
        if self.is_down:
            raise StorageError("switched off", outcome_unknown=False)
        return await super().commit(*args, **options)


def test_a_store_that_does_not_answer_is_asked_again(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "_STORE_PAUSE_US", 100_000)
    store = Outage(SqliteStore(tmp_path / "jobs.db"))
    with App(store) as app, app_watch(app, inbox, watched(app)) as said:
        store.is_down = True
        put(inbox / "a", "a")
        wait_for("it says so", lambda: said.trouble)
        store.is_down = False
        wait_for("its job", lambda: said.jobs)
        wait_for("it says so", lambda: len(said.trouble) == 2)
    assert said.trouble == ["failed", "answers"]
    assert names(said) == ["a"]


@pytest.mark.parametrize("place", ["memory://", "queue.json", "ledger/"])
def test_watching_works_on_every_store(place: str, inbox: Path, tmp_path: Path) -> None:
    with App(place if "://" in place else f"{tmp_path}/{place}") as app:

        @app.task
        def rewrite(path: str) -> None:
            Path(path).write_text("rewritten")

        with app_watch(app, inbox, rewrite) as said:
            put(inbox / "a", "a")
            wait_for("its job", lambda: said.jobs)
            run_until_idle(app)
            put(inbox / "b", "b")
            wait_for("its job", lambda: len(said.jobs) == 2)
        assert names(said) == ["a", "b"]


# -- wrong calls ---------------------------------------------------------------------------


def test_wrong_arguments_are_refused(app: App, inbox: Path) -> None:
    convert = watched(app)

    @app.task
    def count(number: int) -> None: ...

    calls: dict[str, Callable[[], None]] = {
        "is not a folder": lambda: app.watch(inbox / "nowhere", convert),
        "expected the path of a folder": lambda: app.watch(7, convert),  # type: ignore[arg-type]
        "expected a task": lambda: app.watch(inbox, len),  # type: ignore[arg-type]
        "the task declares `number: int`": lambda: app.watch(inbox, count),  # type: ignore[arg-type]
        "at least 100ms": lambda: app.watch(inbox, convert, debounce=timedelta(0)),
        "write timedelta": lambda: app.watch(inbox, convert, debounce=1),  # type: ignore[arg-type]
        "expected a pattern": lambda: app.watch(inbox, convert, pattern="/etc/*"),
    }
    for says, call in calls.items():
        with pytest.raises(InvalidError, match=says):
            call()
    assert app.queue.stats().total == 0


def test_an_immediate_app_cannot_watch(inbox: Path) -> None:
    app = App("memory://", immediate=True)
    with pytest.raises(InvalidError, match="an immediate App stores no jobs"):
        app.watch(inbox, watched(app))


def test_a_worker_can_load_a_script_that_watches(
    inbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "watching_script.py").write_text(
        "from casque import App\n"
        "app = App('jobs.db')\n"
        "@app.task\n"
        "def convert(path: str) -> None: ...\n"
        f"app.watch({str(inbox)!r}, convert)\n"
        "raise SystemExit('reached')\n"
    )
    with load_app("watching_script:app") as app:
        assert list(app.tasks) == ["convert"]


def test_a_dead_job_has_ended(app: App, inbox: Path) -> None:
    with app_watch(app, inbox, watched(app)) as said:
        put(inbox / "a", "a")
        wait_for("its job", lambda: said.jobs)
        [job] = app.queue.dequeue()
        put(inbox / "a", "rewritten")
        app.queue.fail(job, error="broken")
        put(inbox / "b", "b")
        wait_for("the other file has a job", lambda: len(said.jobs) == 2)
    assert names(said) == ["a", "b"]
    assert job_of(app, job.id).status is JobStatus.DEAD
