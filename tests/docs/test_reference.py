"""The reference describes every name, signature, error, address and format."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from typing import Any, get_args

import msgspec
import pytest

import casque
import casque.buckets
from casque import BrokerQueue, CasqueError, DirectQueue, InMemoryStorage, Job, Queue, errors
from casque.record import Record
from casque.rules import operations
from casque.stores import url
from casque.stores.document import codec
from casque.stores.ledger import entry, format_check
from casque.stores.sqlite import connection, place, rows, tables
from tests.docs.following import FENCE, ROOT
from tests.docs.pages import DOCS, QUEUE_REFERENCE, section


def test_exported_names() -> None:
    expected = [
        "App",
        "Backoff",
        "BrokerQueue",
        "Bucket",
        "CASConflictError",
        "CasqueError",
        "CorruptError",
        "DirectQueue",
        "Discard",
        "Handle",
        "HeartbeatManager",
        "InMemoryStorage",
        "InvalidError",
        "Job",
        "JobNotFoundError",
        "JobStatus",
        "Lease",
        "LeaseLostError",
        "LocalFileSystemStorage",
        "Lock",
        "NewJob",
        "ObjectStoragePort",
        "Queue",
        "QueueState",
        "Retry",
        "Snooze",
        "Stats",
        "StorageError",
        "Store",
        "Task",
        "content_id",
        "current_job",
        "open_store",
    ]
    assert casque.__all__ == expected == sorted(expected)
    assert all(hasattr(casque, name) for name in expected)


def test_importing_casque_loads_no_package_but_msgspec() -> None:
    # msgspec first: the packages that it loads, where they are installed, do not count.
    program = """
import sys
import msgspec
before = set(sys.modules)
import casque
import casque.buckets
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"msgspec"}))
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["casque"]


@pytest.mark.parametrize("name", [*casque.__all__, *casque.buckets.__all__])
def test_every_public_name_is_in_the_reference(name: str) -> None:
    reference = "".join(page.read_text() for page in (DOCS / "reference").glob("*.md"))
    assert re.search(rf"(?<!\w){name}(?!\w)", reference)


def public_methods(kind: type) -> dict[str, Callable[..., Any]]:
    return {
        name: value
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def shape(signature: inspect.Signature) -> list[tuple[str, bool, bool]]:
    """The parameters: name, whether it is keyword-only, whether it has a default."""
    return [
        (one.name, one.kind is one.KEYWORD_ONLY, one.default is not one.empty)
        for one in signature.parameters.values()
        if one.name != "self"
    ]


def documented_shape(method: str) -> list[tuple[str, bool, bool]]:
    fence = FENCE.search(section(QUEUE_REFERENCE, method))
    assert fence, f"{method}: no signature"
    [definition] = ast.parse(f"def {fence[2].rstrip()}: ...").body
    assert isinstance(definition, ast.FunctionDef)
    assert definition.name == method
    given = definition.args
    optional_from = len(given.args) - len(given.defaults)
    return [
        *((arg.arg, False, place >= optional_from) for place, arg in enumerate(given.args)),
        *(
            (arg.arg, True, default is not None)
            for arg, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        ),
    ]


@pytest.mark.parametrize("kind", [BrokerQueue, DirectQueue, Queue])
def test_every_method_of_a_queue_is_described_with_its_signature(kind: type) -> None:
    methods = public_methods(kind)
    assert methods
    for name, method in methods.items():
        assert shape(inspect.signature(method)) == documented_shape(name), name


def test_the_reference_describes_no_method_that_is_not_there() -> None:
    life = section(QUEUE_REFERENCE, "close")
    assert "`store`" in life
    assert "`worker`" in life
    text = QUEUE_REFERENCE.read_text()
    queues = text[text.index("## The three queues") : text.index("## HeartbeatManager")]
    described = set(re.findall(r"^### (\w+)$", queues, re.MULTILINE))
    assert described == set(public_methods(BrokerQueue)) == set(public_methods(Queue))


def test_every_attribute_of_a_job_is_described() -> None:
    passage = section(QUEUE_REFERENCE, "Job")
    attributes = {
        name
        for name in (*Job.__struct_fields__, *vars(Job))
        if not name.startswith(("_", "is_")) and not name.endswith("_us")
    }
    assert {name for name in attributes if f"`{name}`" not in passage} == set()


def test_every_error_is_explained() -> None:
    page = DOCS / "how-to" / "handle-errors.md"
    kinds = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, CasqueError)
    ]
    assert len(kinds) > 5
    for kind in kinds:
        assert section(page, kind.__name__).strip()


def test_every_form_of_an_sqlite_address_is_in_the_reference() -> None:
    passage = section(QUEUE_REFERENCE, "open_store")
    for suffix in url._SQLITE_SUFFIXES:
        assert f"`{suffix}`" in passage
    for durability in get_args(connection.Durability):
        assert f"`durability={durability}`" in passage
    major, minor, _ = place._OLDEST_SQLITE
    assert f"SQLite {major}.{minor} or later" in passage
    assert f"{major}.{minor} or later" in (ROOT / "README.md").read_text()


def test_every_field_of_the_document_is_described() -> None:
    page = (DOCS / "reference" / "document-format.md").read_text()
    kinds = [
        value
        for value in vars(codec).values()
        if isinstance(value, type)
        and issubclass(value, msgspec.Struct)
        and value.__module__ == codec.__name__
    ]
    fields = {name for kind in kinds for name in kind.__struct_fields__}
    assert {name for name in fields if f"`{name}`" not in page} == set()


def test_the_example_of_the_format_is_one() -> None:
    page = DOCS / "reference" / "document-format.md"
    [example] = [fence[2] for fence in FENCE.finditer(page.read_text()) if fence[1] == "json"]
    stored = json.loads(example)
    with Queue(InMemoryStorage(example.encode())) as q:
        [job] = q.read_state().jobs
    assert [job.id] == [one["id"] for one in stored["jobs"]]
    assert job.payload == b"alice@example.com"
    # Written again it is the same, to the last field.
    written = codec.encode(codec.decode(example.encode(), "the example"))
    assert json.loads(written) == stored


def test_every_table_and_column_of_sqlite_is_described() -> None:
    page = DOCS / "reference" / "sqlite-schema.md"
    text = page.read_text()
    db = sqlite3.connect(":memory:")
    db.executescript(rows.schema())
    made = db.execute("SELECT type, name FROM sqlite_master WHERE name LIKE 'casque%'").fetchall()
    assert len(made) > len(rows.COLUMNS) // 3
    for kind, name in made:
        assert f"`{name}`" in text, name
        if kind == "index":
            continue
        heading = f"For people: `{name}`" if kind == "view" else f"`{name}`"
        passage = section(page, heading)
        for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", [name]):
            assert f"`{column}`" in passage, f"{name}.{column}"
    db.close()
    assert f"This is schema {tables.SCHEMA}." in text


def test_every_event_of_the_ledger_is_described() -> None:
    path = DOCS / "reference" / "ledger-format.md"
    tags = [kind.__struct_config__.tag for kind in get_args(operations.Event)]
    rows = re.findall(r"^\| (\d+) \| ", section(path, "Events"), re.MULTILINE)
    assert rows == [str(tag) for tag in tags]
    page = path.read_text()
    assert f"This is format {entry.FORMAT}." in page
    assert f"This is format {format_check.FORMAT}." in page
    for fields in (entry._Added.__struct_fields__, Record.__struct_fields__):
        assert {name for name in fields if name.removesuffix("_us") not in page} <= {"run_in_us"}
