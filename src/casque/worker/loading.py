"""Loading: finds the App at `module:app`, and the address by which another process loads an App."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType

from casque.errors import InvalidError
from casque.stores.port import Store
from casque.tasks.app import TaskApp
from casque.tasks.app_store import AppStore
from casque.worker.logging.setup import enable_loggers

_is_loading: ContextVar[bool] = ContextVar("casque_is_loading", default=False)

FORM = "write `module:app`, or the path of a file as in `jobs/tasks.py:app`"


class WorkReached(BaseException):
    """Raised by `App.work` while a worker loads the script that calls it.

    By then the script has defined its tasks. If the call ran, it would start workers in a worker.
    If it returned, the code after the call would run.
    """


def is_loading() -> bool:
    """True if this code runs because `load_app` imports it."""
    return _is_loading.get()


def load_app(
    target: str | None, *, store: str | None = None, modules: Sequence[str] = ()
) -> TaskApp:
    """Return the App at `module:name`, or the only App of a module. InvalidError if there is none.

    `store` replaces the store that the App's code names. `modules` are imported too, because they
    define tasks of the App. Without a target, returns a new App on `store`.

    The current folder comes first on the path, as with `python -m`. A module may
    be named by the path of its file. Then the folder of the file comes first, as
    with `python file.py`; for a file in a package, the folder above the package.
    """
    if target is None:
        if store is None:
            raise InvalidError(f"no app and no store given: name the store, or {FORM}.")
        return TaskApp(store)
    where, _, name = target.partition(":")
    if not where:
        raise InvalidError(f"{target!r} names no module: {FORM}.")
    with suppress(OSError):  # the folder was removed; it may not be needed
        _first_on_path(Path.cwd())
    is_file = where.endswith(".py") or os.sep in where
    module = _import(_name_of_file(Path(where)) if is_file else where)
    if is_file and not _is_of(module, Path(where)):
        raise InvalidError(
            f"the file {where} cannot be imported as {module.__name__!r}: that name belongs to "
            f"{getattr(module, '__file__', None) or 'a module of Python itself'}. Rename the file."
        )
    app = _named(module, name) if name else _only(module)
    for one in modules:
        _import(_name_of_file(Path(one)) if one.endswith(".py") else one)
    enable_loggers()
    if store is not None:
        app.app_store = AppStore(store, max_depth=app.app_store.max_depth)
    return app


def refuse_memory(store: Store) -> None:
    """Raise InvalidError for a store that worker processes cannot share."""
    if store.instant:
        raise InvalidError(
            "other processes cannot see the jobs of a store in memory: use count=1 without "
            "max_jobs and max_mib, or a store that processes share, such as sqlite:///jobs.db."
        )


def path_of(app: TaskApp) -> str:
    """Return the `module:name` by which another process finds this App. InvalidError if none."""
    modules = {name: module for name, module in sys.modules.items() if name != "__main__"}
    for name, module in modules.items():
        spec = getattr(module, "__spec__", None)
        # A module that code created does not exist in another process.
        if spec is not None and spec.name == name and (found := _attribute(module, app)):
            return f"{name}:{found}"
    main = sys.modules.get("__main__")
    if main is not None and (found := _attribute(main, app)):
        if (where := _importable("__main__")) is not None:
            return f"{where}:{found}"
        raise InvalidError(
            "this App was made in an interactive session or by `python -c`, where other processes "
            "cannot find it: write it into a file, or use count=1."
        )
    raise InvalidError(
        "worker processes load the App by its name in a module, and no module has this App: "
        "assign it at the top of a module (`app = App(…)`) instead of in a function or class, "
        "or use count=1."
    )


def name_of(app: TaskApp) -> str | None:
    """The `module:name` of an App, the same in every process; None if no module has it."""
    try:
        where, _, name = path_of(app).rpartition(":")
    except InvalidError:
        return None
    return f"{_module_of(Path(where))[0] if where.endswith('.py') else where}:{name}"


def modules_of(app: TaskApp) -> list[str]:
    """Return the modules that define the App's tasks, by names that another process can import."""
    names = dict.fromkeys(task.function.__module__ for task in app.tasks.values())
    return [found for name in names if (found := _importable(name)) is not None]


def _importable(name: str) -> str | None:
    """Return the name or file by which another process can import a module; None if it cannot."""
    module = sys.modules.get(name)
    spec, file = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if name != "__main__":
        return None if spec is None else name
    if spec is not None:  # run by `python -m`
        return str(spec.name)
    return str(Path(file).resolve()) if file is not None and Path(file).is_file() else None


def _attribute(module: ModuleType, app: TaskApp) -> str | None:
    # A copy: another thread may import something meanwhile. Some programs put other objects into
    # `sys.modules`, which may have no `__dict__`.
    values = list(getattr(module, "__dict__", {}).items())
    return next((name for name, value in values if value is app), None)


def _first_on_path(folder: Path) -> None:
    if sys.path[:1] != [str(folder)]:
        sys.path.insert(0, str(folder))


def _here() -> str:
    try:
        return str(Path.cwd())
    except OSError:
        return "the current folder, which was removed,"


def _name_of_file(file: Path) -> str:
    """Return the module name of a file. Puts the file's folder on the path."""
    if not file.is_file():
        raise InvalidError(f"there is no file {file} in {_here()}.")
    if file.suffix != ".py" or "." in file.stem:
        raise InvalidError(f"Python cannot import the file {file}: {FORM}.")
    name, folder = _module_of(file)
    _first_on_path(folder)
    return name


def _module_of(file: Path) -> tuple[str, Path]:
    """The module name of a file, and the folder from which it can be imported."""
    whole = file.resolve()
    parts, folder = [whole.stem], whole.parent
    while (folder / "__init__.py").is_file():
        parts, folder = [folder.name, *parts], folder.parent
    return ".".join(parts), folder


def _is_of(module: ModuleType, file: Path) -> bool:
    found = getattr(module, "__file__", None)
    return found is not None and Path(found).resolve() == file.resolve()


def _import(name: str) -> ModuleType:
    if name in sys.modules:
        return sys.modules[name]
    loading = _is_loading.set(True)
    try:
        return _execute(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidError(
                f"there is no module {error.name!r} in {_here()} or on Python's path. "
                f"Run the command in the folder of your module; {FORM}."
            ) from None
        raise _failed(name, error) from error
    except (Exception, SystemExit) as error:  # importing a user's module runs it
        raise _failed(name, error) from error
    finally:
        _is_loading.reset(loading)


def _execute(name: str) -> ModuleType:
    """Import a module. If the module calls `app.work()`, stop there and keep what it defined."""
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # an impossible name: "a..b"
        spec = None
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(name=name)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except WorkReached:
        pass
    except BaseException:
        sys.modules.pop(name, None)
        raise
    package, _, last = name.rpartition(".")
    if package:
        setattr(sys.modules[package], last, module)
    return sys.modules[name]


def _failed(name: str, error: BaseException) -> InvalidError:
    """Return the error with the user's own frames, without those of the import machinery."""
    shown = traceback.TracebackException.from_exception(error)
    frames = [one for one in shown.stack if not _is_ours(one.filename)]
    shown.stack = traceback.StackSummary.from_list(frames)
    text = "".join(shown.format(chain=False)).rstrip()
    if not frames:  # a mistake in the syntax of the module itself
        text = f"Traceback (most recent call last):\n{text}"
    return InvalidError(f"the module {name!r} cannot be imported:\n{text}", cause=error)


def _is_ours(filename: str) -> bool:
    return filename == __file__ or filename.startswith("<frozen importlib")


def _named(module: ModuleType, name: str) -> TaskApp:
    apps = ", ".join(_apps(module)) or "none"
    if not hasattr(module, name):
        raise InvalidError(
            f"the module {module.__name__!r} has no {name!r}; the Apps in it: {apps}."
        )
    found = getattr(module, name)
    if not isinstance(found, TaskApp):
        raise InvalidError(
            f"{module.__name__}:{name}: expected an App, got {type(found).__name__}; the Apps in "
            f"the module: {apps}."
        )
    return found


def _only(module: ModuleType) -> TaskApp:
    apps = _apps(module)
    if not apps:
        raise InvalidError(
            f"the module {module.__name__!r} has no App: write `app = App(…)` at its top."
        )
    if len({id(app) for app in apps.values()}) > 1:
        raise InvalidError(
            f"the module {module.__name__!r} has several Apps ({', '.join(apps)}): choose one, as "
            f"in `{module.__name__}:{next(iter(apps))}`."
        )
    return next(iter(apps.values()))


def _apps(module: ModuleType) -> dict[str, TaskApp]:
    return {name: value for name, value in vars(module).items() if isinstance(value, TaskApp)}
