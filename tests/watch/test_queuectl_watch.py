"""`queuectl watch` as a process: each settled content of a file becomes one job."""

from __future__ import annotations

import shutil
import signal
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from casque import App
from casque.cli.main import run
from casque.worker.shell.job import command_of
from tests.watch.watching import jobs_in, put, queuectl_watch
from tests.worker.apps import beside, run_until_idle, wait_for
from tests.worker.shells import shell_app

NASTY = (
    "with space.txt",
    "it's.txt",
    'say "hi".txt',
    "semi;touch PWNED;.txt",
    "$(touch PWNED).txt",
    "`touch PWNED`.txt",
    "new\nline\ntouch PWNED\n.txt",
    "back\\slash\\'; touch PWNED.txt",
    "-rf *.txt",
    "& touch PWNED &.txt",
    "ümläut 名.txt",
)


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    (tmp_path / "inbox").mkdir()
    return tmp_path / "inbox"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def write_in_steps(path: Path) -> None:
    """Several changes, which settle as one content."""
    with path.open("w") as file:
        for _ in range(3):
            file.write(f"first {path.name}")
            file.flush()


def test_a_hundred_files_in_bursts_get_one_job_for_each_settled_content(
    inbox: Path, store: Path, tmp_path: Path
) -> None:
    names = [*NASTY, *(f"file-{n}.txt" for n in range(100 - len(NASTY)))]
    twice = [*NASTY, *names[-9:]]
    with queuectl_watch(
        store, tmp_path, "inbox", "-c", f"printf '%s\\0' {{path}} >> {tmp_path}/ran"
    ) as watch:
        for burst in range(4):
            with watch.suspended():
                for name in names[burst::4]:
                    write_in_steps(inbox / name)
        wait_for("all have a job", lambda: watch.enqueued >= 100)
        with watch.suspended():
            for name in twice:
                (inbox / name).write_text("half")
                (inbox / name).write_text(f"second {name}")
        for name in names[20:30]:
            (inbox / name).touch()  # no other content
        wait_for("the second contents have a job", lambda: watch.enqueued >= 120)
        put(inbox / "last.txt", "last")
        wait_for("what came before has settled", lambda: watch.enqueued >= 121)
        assert watch.stop() == 0
        assert watch.lines[-1] == "Stopped: 121 jobs enqueued."
    commands = Counter(command_of(job) for job in jobs_in(store))
    assert sorted(commands.values()) == [*[1] * 81, *[2] * 20]
    with shell_app(store) as app:
        run_until_idle(app, concurrency=8)
        assert app.queue.stats().completed == 121
    ran = Counter((tmp_path / "ran").read_text().split("\0")[:-1])
    wanted = Counter(str(inbox / name) for name in [*names, *twice, "last.txt"])
    assert ran == wanted
    assert sorted(path.name for path in inbox.iterdir()) == sorted([*names, "last.txt"])
    assert not (tmp_path / "PWNED").exists()


def has_run(app: App, count: int) -> bool:
    return app.queue.stats().completed == count


def test_a_job_that_rewrites_its_own_input_does_not_loop(
    inbox: Path, store: Path, tmp_path: Path
) -> None:
    with (
        shell_app(store) as app,
        queuectl_watch(store, tmp_path, "inbox", "-c", "echo again >> {path}") as watch,
        beside(app),
    ):
        for name in ("a", "b", "c"):
            put(inbox / name, name)
        wait_for("all have run", lambda: has_run(app, 3))
        assert (inbox / "a").read_text() == "aagain\n"
        put(inbox / "later", "later")
        wait_for("a later change has its job", lambda: has_run(app, 4))
        put(inbox / "much later", "much later")
        wait_for("an even later change has its job", lambda: has_run(app, 5))
        assert watch.enqueued == 5
        put(inbox / "a", "from outside")
        wait_for("a change from outside has its job", lambda: has_run(app, 6))
    assert (inbox / "a").read_text() == "from outsideagain\n"
    # The next watcher knows the contents that the jobs left, and those that had jobs.
    put(inbox / "new", "new")
    with queuectl_watch(
        store, tmp_path, "inbox", "--existing", "-c", "echo again >> {path}"
    ) as next_:
        wait_for("the new file has a job", lambda: next_.enqueued)
        next_.stop()
    assert next_.enqueued == 1, next_.lines


def test_a_folder_may_vanish_and_return(inbox: Path, store: Path, tmp_path: Path) -> None:
    put(inbox / "old", "old")
    with queuectl_watch(store, tmp_path, "inbox", "-c", "cat {path}") as watch:
        put(inbox / "one", "one")
        wait_for("a job", lambda: watch.enqueued == 1)
        inbox.rename(tmp_path / "away")
        wait_for("the folder is missed", lambda: watch.said("queuectl: the folder") == 1)
        put(tmp_path / "away" / "two", "two")
        (tmp_path / "away").rename(inbox)
        wait_for("what changed has a job", lambda: watch.enqueued == 2)
        put(inbox / "three", "three")
        wait_for("changes are seen again", lambda: watch.enqueued == 3)
        shutil.rmtree(inbox)
        wait_for("the folder is missed", lambda: watch.said("queuectl: the folder") == 3)
        inbox.mkdir()
        put(inbox / "four", "four")
        put(inbox / "one", "one, changed")
        wait_for("a new folder is watched", lambda: watch.enqueued == 5)
    names = sorted(Path(str(command_of(job)).split()[1]).name for job in jobs_in(store))
    assert names == ["four", "one", "one", "three", "two"]


@pytest.mark.parametrize("place", ["jobs.db", "queue.json", "ledger/"])
def test_the_files_of_the_store_are_not_watched(place: str, tmp_path: Path) -> None:
    store = tmp_path / place
    with queuectl_watch(f"{tmp_path}/{place}", tmp_path, ".", "-r", "-c", "cat {path}") as watch:
        for number in range(1, 4):
            put(tmp_path / f"file-{number}", "x")
            wait_for("a job", lambda n=number: watch.enqueued >= n)  # type: ignore[misc]
        assert watch.stop(signal.SIGINT) == 0
    names = sorted(Path(str(command_of(job)).split()[1]).name for job in jobs_in(store))
    assert names == ["file-1", "file-2", "file-3"]


# -- wrong input -------------------------------------------------------------------------

WRONG = {
    "no command": (["inbox"], "Missing option '--command'"),
    "no folder": (["-c", "x {path}"], "Missing argument"),
    "no such folder": (["nowhere", "-c", "x {path}"], "'nowhere' is not a folder"),
    "a file": (["inbox/file", "-c", "x {path}"], "is not a folder"),
    "an empty name": (["", "-c", "x {path}"], "is not a folder"),
    "one of two": (["inbox", "nowhere", "-c", "x {path}"], "'nowhere' is not a folder"),
    "no place": (["inbox", "-c", "x"], "the command has no {path}"),
    "empty command": (["inbox", "-c", ""], "the command has no {path}"),
    "quoted": (["inbox", "-c", "x '{path}'"], "stands inside quotes"),
    "debounce": (["inbox", "-c", "x {path}", "--debounce", "soon"], "is not a duration"),
    "short": (["inbox", "-c", "x {path}", "--debounce", "0"], "too short: at least 100ms"),
    "depth": (["inbox", "-c", "x {path}", "--pattern", "a/*.pdf"], "--recursive"),
    "pattern": (["inbox", "-c", "x {path}", "--pattern", ""], "expected a pattern"),
    "attempts": (["inbox", "-c", "x {path}", "--max-attempts", "0"], "max_attempts"),
    "timeout": (["inbox", "-c", "x {path}", "--timeout", "never"], "is not a duration"),
    "queue": (["inbox", "-c", "x {path}", "--queue", ""], "queue"),
    "option": (["inbox", "-c", "x {path}", "--recurse"], "No such option"),
    "memory": (["inbox", "-c", "x {path}", "--store", "memory://"], "a store in memory ends"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_input_is_refused_and_changes_nothing(
    case: str,
    inbox: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments, says = WRONG[case]
    (inbox / "file").touch()
    monkeypatch.chdir(inbox.parent)
    assert run(("--store", str(store), "watch", *arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("queuectl: ")
    assert err.count("\n") == 1
    assert says in err
    assert not store.exists()


def test_a_missing_package_is_named_with_the_way_to_install_it(
    inbox: Path, store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "watchfiles", None)
    assert run(("--store", str(store), "watch", str(inbox), "-c", "x {path}")) == 2
    assert "pip install 'casque[watch]'" in capsys.readouterr().err
    assert not store.exists()


def test_jobs_have_the_options_of_the_watch(inbox: Path, store: Path, tmp_path: Path) -> None:
    options = ("-q", "mail", "-p", "3", "--max-attempts", "5", "--timeout", "9s", "--json")
    with queuectl_watch(store, tmp_path, "inbox", "-c", "cat {path}", *options) as watch:
        (inbox / "a").touch()
        wait_for("a job", lambda: len(watch.lines) == 2)
    [job] = jobs_in(store)
    told = [msgspec.json.decode(line) for line in watch.lines]
    enqueued = {"id": job.id, "path": str(inbox / "a"), "duplicate": False}
    assert told == [{"watching": 1}, enqueued, {"enqueued": 1}]
    assert (job.queue, job.priority, job.max_attempts) == ("mail", 3, 5)
    assert job.timeout == timedelta(seconds=9)
