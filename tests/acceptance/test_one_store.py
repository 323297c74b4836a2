"""One store in sight: a person in the wrong folder, or with a typing mistake, is told at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forkserver
from tests.acceptance.fleet import PATIENCE, STORES, until
from tests.acceptance.operating import QUEUECTL, Ran

TASKS = """
from casque import App

app = App({store!r})


@app.task
def greet(name: str) -> str:
    return f"hello {{name}}"
"""
ENQUEUE = "from tasks import greet; greet.enqueue('ann')"
READING = [
    ("status",),
    ("list",),
    ("queues",),
    ("dlq", "list"),
    ("worker", "list"),
    ("schedule", "list"),
    ("config", "list"),
]
"""The commands that read a whole store."""
CHANGING = [
    ("cancel", "job1"),
    ("cancel", "--queue", "mail", "--yes"),
    ("retry", "job1"),
    ("purge", "--older-than", "7d", "--yes"),
    ("pause", "mail"),
    ("resume", "mail"),
    ("reset", "--yes"),
    ("dlq", "retry", "job1"),
    ("dlq", "retry", "--all"),
    ("dlq", "purge", "--yes"),
    ("schedule", "pause", "nightly"),
    ("schedule", "resume", "nightly"),
    ("schedule", "run", "nightly"),
    ("schedule", "remove", "nightly"),
    ("config", "unset", "timeout"),
    ("backup", "copy.db"),
]
"""The commands that need a store with something in it."""
BEGINNING = [
    ("enqueue", "-c", "true"),
    ("config", "set", "timeout", "5m"),
    ("schedule", "add", "nightly", "@daily", "-c", "true"),
    ("worker", "start", "--until-idle", "--foreground"),
]
"""The commands that may be the first on a new store."""


class Person:
    """Someone at a shell, who can change the folder and set variables."""

    def __init__(self, home: Path) -> None:
        self.folder = home
        unset = {"CASQUE_STORE": "", "CASQUE_APP": ""}
        data = {"XDG_DATA_HOME": f"{home}/data", "XDG_STATE_HOME": f"{home}/state"}
        self.environment = {**os.environ, **unset, **data, "COLUMNS": "200"}

    def goes_to(self, name: str) -> Path:
        """Change the folder to a new one."""
        self.folder = self.folder / name
        self.folder.mkdir()
        return self.folder

    def has_tasks(self, store: str, name: str = "tasks") -> None:
        (self.folder / f"{name}.py").write_text(TASKS.format(store=store))

    def types(self, *arguments: str, **variables: str) -> Ran:
        """Run `queuectl`."""
        environment = self.environment | variables
        command = ("casque.cli", *arguments)
        return Ran(*forkserver.run(command, cwd=self.folder, env=environment, timeout=PATIENCE))

    def runs(self, code: str, path: Path | None = None) -> Ran:
        """Run a Python program, which finds modules in the folder `path` too."""
        ran = subprocess.run(
            [sys.executable, "-c", code],
            cwd=self.folder,
            env=self.environment | ({} if path is None else {"PYTHONPATH": str(path)}),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        return Ran(ran.returncode, ran.stdout, ran.stderr)

    def sees(self) -> set[str]:
        """The names in the folder, without what Python and SQLite put beside files."""
        names = {one.name for one in self.folder.iterdir()}
        return {name for name in names if not re.search(r"__pycache__|-wal$|-shm$", name)}


@pytest.fixture
def person(tmp_path: Path) -> Person:
    return Person(tmp_path.resolve())


# -- the wrong folder --------------------------------------------------------------


def test_a_program_that_enqueues_from_the_wrong_folder_is_told_once(person: Person) -> None:
    person.has_tasks("sqlite:///jobs.db")
    home = person.folder
    assert f"created a new queue: {home}/jobs.db" in person.runs(ENQUEUE).err
    assert person.runs(ENQUEUE).err == ""
    elsewhere = person.goes_to("elsewhere")
    ran = person.runs(ENQUEUE, path=home)
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == (
        f"created a new queue: {elsewhere}/jobs.db. If you expected one with jobs, check its "
        "address: a relative path starts in the working directory.\n"
    )
    assert person.runs(ENQUEUE, path=home).err == ""


@pytest.mark.parametrize("store", STORES)
def test_queuectl_in_the_wrong_folder_names_the_queue_that_it_creates(
    person: Person, store: str
) -> None:
    for name in ("right", "wrong"):
        folder = person.goes_to(name)
        ran = person.types("--store", store, "enqueue", "-c", "true")
        place = f"{folder}/{store.rstrip('/')}"
        assert ran.err in {
            f"queuectl: note: created a new queue: {place}\n",
            f"queuectl: note: created a new queue: file://{place}\n",
        }
        assert ran.out.count("\n") == 1, "the note is not on stdout"
        assert person.types("--store", store, "enqueue", "-c", "true").err == ""


def test_a_copy_into_a_new_queue_names_it(person: Person) -> None:
    person.types("--store", "old.db", "enqueue", "-c", "true")
    ran = person.types("copy", "--from", "old.db", "--to", "new.json", "--pause")
    assert ran.code == 0, ran
    assert ran.err.startswith(f"queuectl: note: created a new queue: {person.folder}/new.json")
    assert ran.err.count("\n") == 1


def test_the_same_store_is_found_from_every_folder_through_an_absolute_address(
    person: Person,
) -> None:
    address = f"sqlite:///{person.folder}/jobs.db"
    person.types("enqueue", "-c", "true", CASQUE_STORE=address)
    person.goes_to("elsewhere")
    ran = person.types("enqueue", "-c", "true", CASQUE_STORE=address)
    assert (ran.code, ran.err) == (0, "")
    assert json.loads(person.types("status", "--json", CASQUE_STORE=address).out)["pending"] == 2


# -- the typing mistake ------------------------------------------------------------


@pytest.mark.parametrize(
    ("typo", "command"),
    [
        *(("typo.db", command) for command in READING),
        *((typo, ("list",)) for typo in ("typo.json", "typo/", "sqlite:///typo.db")),
    ],
)
def test_reading_a_store_that_does_not_exist_says_so_and_makes_nothing(
    person: Person, typo: str, command: tuple[str, ...]
) -> None:
    ran = person.types("--store", typo, *command)
    place = f"{person.folder}/{typo.removeprefix('sqlite:///').rstrip('/')}"
    note = rf"queuectl: note: there is no queue at \S*{place}\. Nothing was created\.\n"
    assert re.fullmatch(note, ran.err)
    as_json = person.types("--store", typo, *command, "--json")
    json.loads(as_json.out)
    assert as_json.err == ran.err
    assert person.sees() == set()


@pytest.mark.parametrize(
    ("typo", "command"),
    [
        *(("typo.db", command) for command in CHANGING),
        *((typo, ("pause", "mail")) for typo in ("typo.json", "typo/", "sqlite:///typo.db")),
    ],
)
def test_changing_a_store_that_does_not_exist_fails_and_makes_nothing(
    person: Person, typo: str, command: tuple[str, ...]
) -> None:
    place = f"{person.folder}/{typo.removeprefix('sqlite:///').rstrip('/')}"
    error = (
        rf"queuectl: there is no queue at \S*{place}\. Nothing was changed or created\. Check the "
        r"address: a relative path starts in the working directory\.\n"
    )
    for extra in ((), ("--json",)):
        ran = person.types("--store", typo, *command, *extra)
        assert (ran.code, ran.out) == (3, "")
        assert re.fullmatch(error, ran.err), ran.err
    assert person.sees() == set()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["empty file", "empty folder"])
def test_an_empty_place_stays_empty_when_it_should_be_changed(person: Person, make: object) -> None:
    place = person.folder / ("jobs.db" if make is Path.touch else "ledger")
    make(place)  # type: ignore[operator]
    ran = person.types("--store", str(place), "pause", "mail")
    assert (ran.code, ran.err.count("there is no queue at")) == (3, 1), ran
    assert place.is_dir() or place.read_bytes() == b""
    assert person.sees() == {place.name}


@pytest.mark.parametrize("command", BEGINNING)
def test_a_command_that_begins_a_store_creates_it(person: Person, command: tuple[str, ...]) -> None:
    ran = person.types("--store", "new.db", *command)
    assert ran.code == 0
    assert f"created a new queue: {person.folder}/new.db" in ran.err
    assert person.types("--store", "new.db", "status").code == 0
    for changing in (("pause", "mail"), ("purge", "--older-than", "7d", "--yes")):
        assert person.types("--store", "new.db", *changing).code == 0


@pytest.mark.parametrize("named", ["option", "variable", "app"])
def test_the_status_of_a_store_that_was_named_and_does_not_exist_fails(
    person: Person, named: str
) -> None:
    person.has_tasks("typo.db")
    options = {"option": ("--store", "typo.db"), "variable": (), "app": ("--app", "tasks")}[named]
    variables = {"CASQUE_STORE": "typo.db"} if named == "variable" else {}
    ran = person.types("status", *options, **variables)
    assert ran.code == 3
    assert f"Store: {person.folder}/typo.db (does not exist yet)\n" in ran.out
    found = json.loads(person.types("status", "--json", *options, **variables).out)
    assert (found["store"], found["exists"]) == (f"{person.folder}/typo.db", False)
    assert person.sees() == {"tasks.py"}


def test_the_first_status_on_a_new_machine_succeeds_and_says_that_there_is_no_queue(
    person: Person,
) -> None:
    ran = person.types("status")
    place = f"{person.folder}/data/casque/queue.db"
    assert (ran.code, ran.err) == (
        0,
        f"queuectl: note: there is no queue at {place}. Nothing was created.\n",
    )
    assert person.sees() == set()


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir], ids=["empty file", "empty folder"])
def test_an_empty_place_stays_empty_when_it_is_read(person: Person, make: object) -> None:
    place = person.folder / ("jobs.db" if make is Path.touch else "ledger")
    make(place)  # type: ignore[operator]
    ran = person.types("--store", str(place), "status")
    assert (ran.code, ran.err.count("there is no queue at")) == (3, 1), ran
    assert place.is_dir() or place.read_bytes() == b""
    assert person.sees() == {place.name}


def test_watching_the_status_of_a_missing_store_waits_for_it_and_makes_nothing(
    person: Person,
) -> None:
    command = [*QUEUECTL, "--store", "late.db", "status", "--watch", "--interval", "50ms", "--json"]
    with subprocess.Popen(
        command, cwd=person.folder, env=person.environment, stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        try:
            assert json.loads(watching.stdout.readline())["exists"] is False
            assert person.sees() == set()
            person.types("--store", "late.db", "enqueue", "-c", "true")
            lines = map(json.loads, iter(watching.stdout.readline, ""))
            assert any(one["exists"] and one["pending"] == 1 for one in lines)
        finally:
            watching.terminate()
    assert watching.returncode == 0


# -- the store of an App -----------------------------------------------------------


def test_every_command_finds_the_store_of_an_app(person: Person) -> None:
    person.has_tasks("sqlite:///of_app.db")
    app = ("--app", "tasks:app")
    assert person.types("config", "path", *app).out == f"sqlite:///{person.folder}/of_app.db\n"
    assert person.types("status", *app).code == 3
    assert person.sees() == {"tasks.py"}, "importing the App opens nothing"

    enqueued = person.types("enqueue", '{"id": "job1", "command": "exit 3"}', *app)
    assert enqueued.out == "Job job1 enqueued: exit 3\n"
    assert f"created a new queue: {person.folder}/of_app.db" in enqueued.err
    assert "job1" in person.types(*app, "list", "--state", "pending").out
    assert person.types("show", "job1", *app).code == 0
    assert "default" in person.types("queues", *app).out
    for name in ("pause", "resume"):
        assert person.types(name, "default", *app).code == 0
    assert person.types("config", "set", "max_retries", "1", *app).code == 0
    assert person.types("schedule", "add", "often", "@daily", "-c", "true", *app).code == 0
    assert "often" in person.types("schedule", "list", *app).out
    assert person.types("cancel", "job1", *app).code == 0
    ran = person.types("enqueue", "-c", "exit 3", "--id", "job2", "--max-attempts", "1", *app)
    assert (ran.code, ran.err) == (0, "")
    assert person.types("worker", "start", "--until-idle", "--foreground", *app).code == 0
    assert "job2" in person.types("dlq", "list", *app).out
    assert person.types("dlq", "retry", "job2", *app).code == 0
    assert '"id":"job2"' in person.types("export", *app).out.replace(" ", "")
    assert person.types("purge", "--yes", "--older-than", "0", *app).code == 0
    assert person.types("backup", "copy.db", *app).code == 0
    assert person.types("reset", "--yes", *app).code == 0
    assert person.sees() == {"tasks.py", "of_app.db", "copy.db", "state"} - (
        set() if (person.folder / "state").exists() else {"state"}
    )


def test_what_the_module_of_an_app_prints_does_not_spoil_json(person: Person) -> None:
    person.has_tasks("of_app.db")
    module = person.folder / "tasks.py"
    module.write_text(f"print('connecting …')\n{module.read_text()}")
    ran = person.types("enqueue", "-c", "true", "--json", "--app", "tasks:app")
    assert json.loads(ran.out)["command"] == "true"
    assert "connecting …" in ran.err


@pytest.mark.parametrize("name", ["tasks", "tasks:app", "tasks.py:app", "./tasks.py"])
def test_an_app_may_be_named_in_the_variable_in_every_form(person: Person, name: str) -> None:
    person.has_tasks("of_app.db")
    ran = person.types("enqueue", "-c", "true", CASQUE_APP=name)
    assert ran.err == f"queuectl: note: created a new queue: {person.folder}/of_app.db\n"
    assert f"Store: {person.folder}/of_app.db\n" in person.types("status", CASQUE_APP=name).out


def test_an_option_beats_a_variable_and_a_store_beats_an_app(person: Person) -> None:
    person.has_tasks("app_option.db", "by_option")
    person.has_tasks("app_variable.db", "by_variable")
    ways = [
        ("store_option.db", ("--store", "store_option.db"), {}),
        ("app_option.db", ("--app", "by_option"), {}),
        ("store_variable.db", (), {"CASQUE_STORE": "store_variable.db"}),
        ("app_variable.db", (), {"CASQUE_APP": "by_variable"}),
        ("data/casque/queue.db", (), {}),
    ]
    for place, (expected, _, _) in enumerate(ways):
        options = [word for _, given, _ in ways[place:] for word in given]
        variables = {name: value for _, _, given in ways[place:] for name, value in given.items()}
        for command in (("config", "path"), ("enqueue", "-c", "true"), ("status",)):
            ran = person.types(*command, *options, **variables)
            assert f"{person.folder}/{expected}" in ran.out + ran.err, (command, ran)


def test_workers_of_an_app_use_the_store_that_every_other_command_shows(person: Person) -> None:
    person.has_tasks("of_app.db")
    variables = {"CASQUE_STORE": "other.db"}
    person.types("--app", "tasks", "enqueue", "-c", "true", "--id", "job1", **variables)
    ran = person.types(
        "--app", "tasks", "worker", "start", "--until-idle", "--foreground", **variables
    )
    assert "Job job1 completed successfully." in ran.out
    ran = person.types(
        *("--app", "tasks", "--store", "third.db"),
        *("worker", "start", "--until-idle", "--foreground", "--log-format", "text"),
    )
    assert f"works on greet, shell, 32 at a time; store: {person.folder}/third.db (" in ran.err


def test_a_mistake_in_the_module_of_an_app_is_shown_as_by_worker_start(person: Person) -> None:
    (person.folder / "broken.py").write_text("from casque import App\n1 / 0\n")
    for name in ("broken", "broken:app", "absent:app", "tasks:none"):
        person.has_tasks("of_app.db")
        start = person.types("worker", "start", "--app", name)
        assert start.code == 2
        for command in (("status",), ("list",), ("enqueue", "-c", "true"), ("config", "path")):
            assert person.types(*command, "--app", name) == start
            assert person.types(*command, CASQUE_APP=name) == start
    assert person.types("status", "--app", " ").err.startswith("queuectl: --app is empty")
    assert person.sees() == {"broken.py", "tasks.py"}


@pytest.mark.parametrize("command", [("status",), ("worker", "start", "--foreground")])
def test_the_traceback_of_a_broken_module_can_be_read(
    person: Person, command: tuple[str, ...]
) -> None:
    (person.folder / "orders.py").write_text("def total(n):\n    return n / 0\n")
    (person.folder / "broken.py").write_text("import orders\n\norders.total(7)\n")
    ran = person.types(*command, "--app", "broken:app")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[:4] == [
        "queuectl: the module 'broken' cannot be imported:",
        "Traceback (most recent call last):",
        f'  File "{person.folder}/broken.py", line 3, in <module>',
        "    orders.total(7)",
    ]
    assert ran.err.endswith("\nZeroDivisionError: division by zero\n")
    (person.folder / "unready.py").write_text("def total(n:\n    return 1\n")
    ran = person.types(*command, "--app", "unready")
    lines = ran.err.splitlines()
    assert lines[0] == "queuectl: the module 'unready' cannot be imported:"
    assert "    def total(n:" in lines
    assert lines[-1].startswith("SyntaxError: ")


def test_an_app_without_a_shared_store_is_refused(person: Person) -> None:
    person.has_tasks("memory://")
    for command in (("status",), ("enqueue", "-c", "true"), ("list",), ("export",)):
        ran = person.types(*command, "--app", "tasks")
        assert (ran.code, ran.out) == (2, "")
        assert "a store in memory ends with this command" in ran.err


def test_an_app_may_have_a_store_object(person: Person) -> None:
    (person.folder / "tasks.py").write_text(
        "from casque import App, LocalFileSystemStorage\n"
        "app = App(LocalFileSystemStorage('queue.json'))\n"
    )
    assert person.types("enqueue", "-c", "true", "--app", "tasks").code == 0
    ran = person.types("status", "--app", "tasks", "--json")
    assert json.loads(ran.out)["pending"] == 1
    assert person.types("config", "path", "--app", "tasks").out == f"{person.folder}/queue.json\n"


# -- what names the store ----------------------------------------------------------


def test_status_names_the_store_in_its_table_and_in_json(person: Person) -> None:
    person.types("--store", "jobs.db", "enqueue", "-c", "true")
    ran = person.types("--store", "jobs.db", "status")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith(f"\nStore: {person.folder}/jobs.db\n")
    found = json.loads(person.types("--store", "jobs.db", "status", "--json").out)
    assert (found["store"], found["exists"]) == (f"{person.folder}/jobs.db", True)


@pytest.mark.parametrize("log_format", ["console", "text", "json"])
def test_the_first_line_of_a_worker_names_its_store(person: Person, log_format: str) -> None:
    person.has_tasks("sqlite:///jobs.db")
    start = ("worker", "start", "--until-idle", "--foreground", "--log-format", log_format)
    ran = person.types(*start, "--app", "tasks")
    assert ran.code == 0, ran
    lines = (ran.out if log_format == "console" else ran.err).splitlines()
    own = {
        "console": r"\[Worker \d+\] (.*)",
        "text": r".* \[\d+\] (works on .*)",
        "json": r'(.*"logger":"casque.worker",.*)',
    }[log_format]
    [first, *_] = [match[1] for line in lines if (match := re.fullmatch(own, line))]
    assert f"{person.folder}/jobs.db" in first
    if log_format == "json":
        assert json.loads(first)["store"] == f"{person.folder}/jobs.db"


def test_worker_start_names_the_store(person: Person) -> None:
    ran = person.types("worker", "start", "--until-idle", "--store", "jobs.db")
    assert ran.code == 0, ran
    assert ran.out.endswith(f"\nStore: {person.folder}/jobs.db\n")
    started = person.types("worker", "start", "--until-idle", "--store", "jobs.db", "--json")
    assert json.loads(started.out)["store"] == f"{person.folder}/jobs.db"
    until("the workers have ended", lambda: person.types("worker", "check").code == 1)


def test_config_path_is_absolute_and_never_has_a_password(person: Person) -> None:
    for given, shown in (
        ("jobs.db", f"{person.folder}/jobs.db"),
        ("json:///queue.json", f"json:///{person.folder}/queue.json"),
        ("~/jobs.db", f"{Path.home()}/jobs.db"),
        ("sqlite:///~/jobs.db", f"sqlite:///{Path.home()}/jobs.db"),
        ("postgres://me:secret@host/db", "postgres://me:…@host/db"),
    ):
        assert person.types("config", "path", "--store", given).out == f"{shown}\n"
