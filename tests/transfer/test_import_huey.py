"""Files of huey: tasks by name, and pickles that run nothing."""

from __future__ import annotations

import json
import os
import pickle
import sqlite3
import zlib
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Any

import huey.serializer
import pytest
from huey import SqliteHuey
from huey.registry import Message

from casque import App, JobStatus
from casque.system.clock import SystemClock, to_datetime
from casque.transfer import TransferReport, import_file
from casque.transfer.sources import pickle_keys, pickles
from tests.transfer.made_files import changed
from tests.transfer.places import jobs_in


def _send(to: str, subject: str = "") -> None: ...


def _other() -> None: ...


def _add(a: int, b: int, *, c: int = 0) -> None: ...


def _step(value: Any = None) -> None: ...


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "to").mkdir()
    return f"{tmp_path}/to/jobs.db"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "huey.db"


def opened(path: Path, **options: Any) -> Any:
    return SqliteHuey("mail", filename=str(path), **options)


def put(path: Path, data: bytes) -> None:
    """A row of the task table, as an attacker might write it."""
    changed(path, "INSERT INTO task (queue, data, priority) VALUES ('mail', ?, 0)", data)


def reasons(report: TransferReport) -> list[str]:
    return [one.reason for one in report.not_taken]


def test_tasks_arrive_by_name_with_their_arguments(path: Path, target: str) -> None:
    app = opened(path)

    send = app.task(retries=2, priority=5)(_send)

    other = app.task()(_other)

    ids = [send("a@example.com", subject="hi").id, other().id]
    later = to_datetime(SystemClock().now()) + timedelta(hours=3)
    ids.append(send.schedule(("b",), eta=later).id)
    waiting = send.s("c", eta=later)
    app.storage.add_to_schedule(app.serialize_task(waiting), waiting.eta)  # as a consumer does
    ids.append(waiting.id)
    app.storage.close()
    report = import_file(path, target)
    assert (report.source, report.added, report.not_taken) == ("huey", 4, [])
    jobs = {job.id: job for job in jobs_in(target)}
    first, second, third, fourth = (jobs[id] for id in ids)
    assert (first.entrypoint, first.queue, first.priority) == ("_send", "mail", -5)
    assert json.loads(first.payload) == {"*": ["a@example.com"], "subject": "hi"}
    assert (first.max_attempts, second.entrypoint, second.payload) == (3, "_other", b"{}")
    for job in (third, fourth):
        assert abs(job.run_at - later) < timedelta(seconds=1)
    assert import_file(path, target).known == 4


def test_a_task_of_casque_runs_the_imported_call(path: Path, target: str) -> None:
    old = opened(path)

    add = old.task()(_add)

    id = add(1, 2, c=3).id
    old.storage.close()
    import_file(path, target)
    app = App(target)

    @app.task(name="_add")
    def add_here(a: int, b: int, *, c: int = 0) -> int:
        return a + b * 10 + c * 100

    app.work(until_idle=True)
    [job] = jobs_in(target)
    assert (job.id, job.status, job.result) == (id, JobStatus.COMPLETED, b"321")


def test_tasks_that_casque_cannot_hold_are_listed(path: Path, target: str) -> None:
    app = opened(path)

    step = app.task()(_step)

    app.enqueue(step.s(1).then(step, 2))
    step.schedule((1,), delay=60, expires=120)
    step(object)
    step({1: 2})
    step(float("nan"))
    revoked = step(1)
    revoked.revoke()
    step(2)
    app.storage.close()
    report = import_file(path, target)
    assert report.added == 1
    for part in ("pipeline", "expiry", "builtins.object", "JSON needs text", "nan", "revoked"):
        assert [why for why in reasons(report) if part in why], part


@pytest.mark.parametrize("use_zlib", [False, True])
def test_compressed_and_signed_messages_are_read(use_zlib: bool, path: Path, target: str) -> None:
    serializer = huey.serializer.SignedSerializer("secret", compression=True, use_zlib=use_zlib)
    app = opened(path, serializer=serializer)

    send = app.task()(_send)

    send("a")
    app.storage.close()
    assert import_file(path, target).added == 1


# -- hostile pickles ---------------------------------------------------------------


class Hostile:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, call: Any, *args: object) -> None:
        self.call = (call, args)

    def __reduce__(self) -> Any:
        return self.call


def test_nothing_in_a_hostile_pickle_runs(path: Path, target: str, tmp_path: Path) -> None:
    opened(path).storage.close()
    proof = tmp_path / "proof"
    calls = [
        Hostile(os.system, f"touch {proof}"),
        Hostile(eval, f"open({str(proof)!r}, 'w')"),
        Hostile(exec, f"open({str(proof)!r}, 'w')"),
        Hostile(__import__, "this"),
        Hostile(getattr, 1, "real"),
        Hostile(Path.touch, proof),
    ]
    for call in calls:
        put(path, pickle.dumps(call))
        put(path, pickle.dumps(Message("id", "tasks.send", args=(call,))))
        put(path, zlib.compress(pickle.dumps(call)))
    pickle.loads(pickle.dumps(calls[0]))  # it does work elsewhere
    assert proof.exists()
    proof.unlink()
    report = import_file(path, target)
    assert (report.added, len(report.not_taken)) == (0, 3 * len(calls))
    assert all("its pickle was not read: it contains" in why for why in reasons(report))
    assert not proof.exists()
    assert jobs_in(target) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80",
        b"\x80\x05.",
        b"garbage",
        b"cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04Pid\n.",  # a persistent id
        b"\x80\x02\x82\x01.",  # an extension code
        pickle.dumps([1, 2]),
        pickle.dumps(Message("id")),
        pickle.dumps(Message(1, 2, 3)),
        pickle.dumps(Message("id", "t.f", kwargs={"*": 1})),
        pickle.dumps(Message("id", "t.f", args="abc")),
        pickle.dumps(Message("id", "t.f", retries=-9)),
        pickle.dumps(Message("id", "t.f", priority=float("inf"))),
        pickle.dumps(Message("id", "t.f", timeout=float("nan"))),
        pickle.dumps(Message("i\0d", "t.f")),
        zlib.compress(b"x" * 10)[:-4],
        zlib.compress(bytes(pickles.LARGEST_BYTES + 1)),
    ],
    ids=range(18),
)
def test_odd_data_is_listed_and_the_rest_is_taken(data: bytes, path: Path, target: str) -> None:
    opened(path).storage.close()
    put(path, data)
    put(path, pickle.dumps(Message("good", "t.f")))
    report = import_file(path, target)
    assert (report.added, len(report.not_taken)) == (1, 1)


def test_a_small_pickle_that_would_fill_the_memory_as_json_is_listed(
    path: Path, target: str
) -> None:
    value: list[Any] = ["x"]
    for _ in range(60):
        value = [value] * 10
    endless: list[Any] = []
    endless.append(endless)
    opened(path).storage.close()
    for args in ((value,), (endless,)):
        put(path, pickle.dumps(Message("id", "t.f", args=args)))
    report = import_file(path, target)
    assert report.added == 0
    assert [why.split(" than ")[0] for why in reasons(report)] == [
        *("it has more", "its values are nested deeper"),
    ]


NESTED = b"2\x86" * 24
"""(x, x) of itself, again and again: twice the time to hash it with each pair."""


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8f()" + NESTED + b"\x90.",  # ADDITEMS
        b"\x80\x04()" + NESTED + b"\x91.",  # FROZENSET
        b"\x80\x04})" + NESTED + b"Ns.",  # SETITEM
        b"\x80\x04}()" + NESTED + b"Nu.",  # SETITEMS
        b"\x80\x04()" + NESTED + b"Nd.",  # DICT
        b"\x80\x04\x8f()" + b"\x94h\x00\x86" + NESTED + b"\x94h\x01\x90.",
        b"\x80\x04)" + NESTED + b"q\x07\x8f(h\x07\x90.",  # from the memo
        b"\x80\x04(0)" + NESTED + b"\x94\x8f(h\x00\x90.",  # POP takes a mark
        pickle.dumps({2**61 - 1, 1}),
    ],
    ids=range(9),
)
def test_a_pickle_with_keys_that_take_years_to_hash_is_listed(
    data: bytes, path: Path, target: str
) -> None:
    opened(path).storage.close()
    put(path, data)
    put(path, pickle.dumps(Message("good", "t.f", kwargs={"a": {"b": (1, 2)}}, args=({1, "x"},))))
    report = import_file(path, target)
    [why] = reasons(report)
    assert report.added == 1
    assert why.startswith("a set, or a key of a dict, contains another container")


def test_a_pickle_of_too_many_steps_is_listed(
    path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickle_keys, "_MOST_STEPS", 1_000)
    opened(path).storage.close()
    put(path, zlib.compress(b"\x80\x04" + b"N0" * 500 + b"N."))
    assert reasons(import_file(path, target)) == ["its pickle has more than 1,000 steps"]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_read_from_each_protocol(protocol: int) -> None:
    pair, words = (1, "ä"), ["a"]
    inner = {"b": [pair, pair, (), {}, words, words], 3: -(2**40), "c": {"d": 1.5, None: True}}
    value = {"a": inner, "n": list(range(2_000)), "s": "x" * 300, "b": bytearray(b"y").decode()}
    assert pickles.loads(pickle.dumps(value, protocol)) == value
    if protocol > 3:  # older ones call `set`
        assert pickles.loads(pickle.dumps([{1, "a"}, frozenset("b")], protocol))[0] == {1, "a"}


def test_a_pickle_cannot_change_the_classes_that_it_names(path: Path, target: str) -> None:
    # BUILD with a state of (None, {"__new__": …}) sets an attribute of the class itself.
    opened(path).storage.close()
    put(path, b"\x80\x02chuey.registry\nMessage\nN}X\x05\x00\x00\x00countK\x07s\x86b.")
    put(path, pickle.dumps(Message("good", "t.f")))
    assert import_file(path, target).added == 1
    assert pickles.PickledMessage.count is tuple.count
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("SELECT count(*) FROM task").fetchone() == (2,)
