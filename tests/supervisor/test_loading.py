"""From an address to an App and back, and the error if there is none."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from casque import App, InvalidError
from casque.worker.loading import is_loading, load_app, path_of
from casque.worker.options import WorkerOptions
from casque.worker.supervision.supervisor import work
from tests.supervisor.programs import Bench

Write = Callable[[str, str], Path]
APP = "from casque import App\napp = App('sqlite:///jobs.db')\n"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write modules into the current folder. `sys.modules` and `sys.path` are restored later."""
    before = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    yield write
    for name in set(sys.modules) - before:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("file", "target"),
    [
        ("loaded_a.py", "loaded_a:app"),
        ("loaded_b.py", "loaded_b"),
        ("loaded_c.py", "loaded_c.py:app"),
        ("loaded_d.py", "./loaded_d.py"),
        ("folder/loaded_e.py", "folder/loaded_e.py:app"),
        ("folder/loaded_f.py", "folder.loaded_f:app"),
        ("loaded-g.py", "loaded-g.py:app"),
    ],
)
def test_an_app_is_found_by_the_name_or_the_file_of_its_module(
    file: str, target: str, write: Write
) -> None:
    write(file, APP)
    assert isinstance(load_app(target), App)


def test_a_file_in_a_package_is_loaded_as_a_part_of_it(write: Write) -> None:
    write("parcel/__init__.py", "")
    write("parcel/names.py", "NAME = 'sqlite:///jobs.db'")
    write("parcel/tasks.py", "from .names import NAME\nfrom casque import App\na = App(NAME)")
    app = load_app("parcel/tasks.py:a")
    assert path_of(app) == "parcel.tasks:a"
    assert sys.modules["parcel"].tasks is sys.modules["parcel.tasks"]


def test_the_files_beside_a_file_are_found_as_python_would_find_them(write: Write) -> None:
    write("elsewhere/beside_it.py", "NAME = 'sqlite:///jobs.db'")
    write("elsewhere/loaded_h.py", f"import beside_it\n{APP}")
    assert isinstance(load_app("elsewhere/loaded_h.py"), App)


def test_a_given_store_replaces_the_apps_own(write: Write, tmp_path: Path) -> None:
    write("loaded_i.py", APP)
    app = load_app("loaded_i:app", store=f"sqlite:///{tmp_path}/other.db")
    app.queue.enqueue("e")
    app.close()
    assert (tmp_path / "other.db").exists()
    assert not (tmp_path / "jobs.db").exists()


def test_one_app_under_two_names_is_one_app(write: Write) -> None:
    write("loaded_j.py", f"{APP}again = app")
    assert isinstance(load_app("loaded_j"), App)


@pytest.mark.parametrize(
    ("text", "target", "said"),
    [
        (APP, "missing:app", ["no module 'missing'", "{cwd}"]),
        (APP, "missing.part:app", ["no module 'missing'"]),
        (APP, "broken_k.part:app", ["no module 'broken_k.part'"]),
        (APP, "missing.py:app", ["no file missing.py", "{cwd}"]),
        (APP, "folder/missing.py", ["no file folder/missing.py"]),
        (APP, ":app", ["names no module", "module:app"]),
        (APP, "", ["names no module"]),
        (APP, "a..b:app", ["no module 'a'"]),
        (APP, "broken_k:ap", ["has no 'ap'", "app"]),
        (APP, "broken_k:App", ["expected an App, got type", "app"]),
        (f"{APP}two = App('sqlite:///b.db')", "broken_k", ["several Apps (app, two)", "k:app"]),
        ("x = 1", "broken_k", ["has no App"]),
        ("import missing_too", "broken_k", ["cannot be imported", "'missing_too'", "line 1"]),
        ("1 / 0", "broken_k:app", ["ZeroDivisionError", "broken_k.py"]),
        ("def", "broken_k:app", ["SyntaxError", "broken_k.py"]),
        ("raise SystemExit(4)", "broken_k:app", ["SystemExit: 4"]),
    ],
)
def test_a_wrong_address_is_explained(
    text: str, target: str, said: list[str], write: Write
) -> None:
    write("broken_k.py", text)
    with pytest.raises(InvalidError) as raised:
        load_app(target)
    for part in said:
        assert part.format(cwd=Path.cwd()) in str(raised.value)
    assert "importlib" not in str(raised.value)
    assert not is_loading()


def test_a_module_that_failed_is_imported_again_the_next_time(write: Write) -> None:
    write("broken_l.py", "1 / 0")
    with pytest.raises(InvalidError, match="ZeroDivisionError"):
        load_app("broken_l")
    assert "broken_l" not in sys.modules


def test_a_file_whose_name_is_taken_is_explained(write: Write) -> None:
    write("json.py", APP)
    with pytest.raises(InvalidError, match="Rename the file"):
        load_app("json.py:app")


def test_a_script_is_loaded_up_to_its_call_of_work(write: Write) -> None:
    write("script_m.py", f"{APP}app.work(count=3)\nraise SystemExit('after')")
    app = load_app("script_m.py:app")
    assert path_of(app) == "script_m:app"
    assert not is_loading()


def test_an_app_that_no_module_has_is_refused() -> None:
    app = App("sqlite:///jobs.db")
    with pytest.raises(InvalidError, match="at the top of a module"):
        path_of(app)
    with pytest.raises(InvalidError, match="at the top of a module"):
        work(app, WorkerOptions(), 2)


def test_an_app_in_a_module_that_code_created_is_refused(write: Write) -> None:
    made = ModuleType("made_by_hand")
    app = App("sqlite:///jobs.db")
    vars(made)["app"] = app
    sys.modules["made_by_hand"] = made
    with pytest.raises(InvalidError, match="at the top of a module"):
        path_of(app)


def main_with(app: App, **attributes: object) -> ModuleType:
    made = ModuleType("__main__")
    vars(made).update(app=app, **attributes)
    return made


def test_an_app_of_a_script_is_found_by_its_file(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App("sqlite:///jobs.db")
    script = write("my_script.py", "")
    monkeypatch.setitem(sys.modules, "__main__", main_with(app, __file__="my_script.py"))
    assert path_of(app) == f"{script.resolve()}:app"


def test_an_app_of_an_interactive_session_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    app = App("sqlite:///jobs.db")
    monkeypatch.setitem(sys.modules, "__main__", main_with(app))
    with pytest.raises(InvalidError, match=r"interactive session.*write it into a file"):
        path_of(app)


SILENCES = """
import logging.config
from casque import App

logging.config.dictConfig({"version": 1, "loggers": {"loud": {"level": "ERROR"}}})
app = App("sqlite:///jobs.db")

@app.task
def quick() -> None: ...
"""


@pytest.mark.parametrize("count", ["1", "2"])
def test_logging_that_an_app_sets_up_silences_no_worker(count: str, bench: Bench) -> None:
    bench.write("silences.py", SILENCES)
    [id] = bench.enqueue("quick")
    program = bench.worker("--until-idle", "--count", count, app="silences:app")
    assert program.ends() == 0
    program.says(rf"quick \(job {id}, attempt 1 of \d+\): done in")


def test_a_log_level_that_an_app_sets_for_workers_is_kept(bench: Bench) -> None:
    level = "logging.getLogger('casque.worker').setLevel('ERROR')\n"
    bench.write("silences.py", f"{SILENCES}\n{level}")
    bench.enqueue("quick")
    program = bench.worker("--until-idle", app="silences:app")
    assert program.ends() == 0
    assert not program.output
