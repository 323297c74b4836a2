"""What the documents say is so: their code runs, their names exist, their links lead somewhere."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

import casque
import casque.buckets
from casque import (
    Backoff,
    BrokerQueue,
    CasqueError,
    DirectQueue,
    InMemoryStorage,
    Job,
    Queue,
    arguments,
    codec,
    commit,
    errors,
    holding,
    localdisk,
    operations,
    queue,
    rules,
    state,
    tasks,
    transaction,
    transitions,
)
from casque.buckets import PAGE, obstore, replies
from casque.clock import DAY_US, MINUTE_US, SECOND_US
from casque.record import Record
from casque.stores import document, port, url
from casque.stores.ledger import asking, buckettime, entry, opening, pacing
from casque.stores.ledger import store as ledger
from casque.stores.sqlite import connection, rows, store, watch
from casque.testing import BucketSuite
from casque.worker import __main__, deck, loop, options, supervisor
from tests.docs.following import FENCE, ROOT, Reader, blocks

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "casque"
GUARANTEES = DOCS / "guarantees.md"
QUEUE_REFERENCE = DOCS / "reference" / "queue.md"

WITH_CODE = [
    ROOT / "README.md",
    DOCS / "reference" / "tasks.md",
    *sorted(page for page in (DOCS / "how-to").glob("*.md") if "```python" in page.read_text()),
]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]


def named(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def prose(path: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", path.read_text())


def section(path: Path, heading: str) -> str:
    """The text below a heading, up to the next heading of any level."""
    found = re.search(
        rf"^#+ {re.escape(heading)}$(.*?)(?=^#+ |\Z)", path.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found, f"{named(path)} has no heading {heading!r}"
    return found[1]


@pytest.fixture
def reader_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may change within a second
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as on a terminal
    return lambda page: Reader(page, tmp_path, lambda: capsys.readouterr().out)


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, reader_of: Callable[[Path], Reader]
) -> None:
    reader = reader_of(page)
    reader.follow()
    assert reader.ran


def test_the_tutorial_can_be_followed_in_two_terminals(
    reader_of: Callable[[Path], Reader],
) -> None:
    reader = reader_of(DOCS / "tutorial.md")
    reader.follow()
    assert reader.ran > 5
    assert (reader.started, reader.killed) == (2, 1)


def test_the_store_that_is_proven_on_its_page_passes_the_suite(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "prove-your-own-store.md"
    proof = "\n".join(block.body for block in blocks(page) if block.language == "python")
    (tmp_path / "test_shelf.py").write_text(proof)
    # Found is enough here: to shrink what it finds would take longer than this test may.
    (tmp_path / "conftest.py").write_text(
        "from hypothesis import Phase, settings\n"
        "settings.register_profile('found', phases=[Phase.generate])\n"
        "settings.load_profile('found')\n"
    )
    some = (
        "direct and (one_bad_operation or stored_bytes or slow_process) or oracle_agree"
        " or Cupboard and not processes"
    )
    promises = [name for name in vars(BucketSuite) if name.startswith("test_")]
    told = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", some, "test_shelf.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert told.returncode == 0, told.stdout
    count = 4 + sum("processes" not in name for name in promises)
    assert f"{count} passed" in told.stdout


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
        "current_job",
        "open_store",
    ]
    assert casque.__all__ == expected == sorted(expected)
    assert all(hasattr(casque, name) for name in expected)


def test_importing_casque_loads_no_package_but_msgspec() -> None:
    # msgspec first: what it takes along, where that is installed, is its own affair.
    look = """
import sys
import msgspec
before = set(sys.modules)
import casque
import casque.buckets
loaded = {name.partition(".")[0] for name in set(sys.modules) - before}
print(*sorted(loaded - set(sys.stdlib_module_names) - {"msgspec"}))
"""
    told = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["casque"]


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
    """Of each parameter its name, whether it is keyword-only, and whether it may be left out."""
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
    told = section(QUEUE_REFERENCE, "Job")
    attributes = {
        name
        for name in (*Job.__struct_fields__, *vars(Job))
        if not name.startswith(("_", "is_")) and not name.endswith("_us")
    }
    assert {name for name in attributes if f"`{name}`" not in told} == set()


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


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there), target


def existing_tests(*folders: Path) -> set[str]:
    names: set[str] = set()
    for folder in folders:
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_text())
            names.update(
                node.name
                for node in ast.walk(tree)
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name.startswith("test_")
            )
    return names


def test_every_guarantee_names_tests_that_exist() -> None:
    text = GUARANTEES.read_text()
    guarantees = re.split(r"^## (?=\d)", text[: text.index("## Bounds")], flags=re.MULTILINE)[1:]
    assert len(guarantees) == 11
    there = existing_tests(SOURCE / "testing", ROOT / "tests")
    for guarantee in guarantees:
        proofs = re.findall(r"`(test_\w+)`", guarantee)
        assert proofs, guarantee.partition("\n")[0]
    assert set(re.findall(r"`(test_\w+)`", text)) <= there


@pytest.mark.parametrize(
    ("store", "folders"),
    [
        ("", [SOURCE / "testing" / "suite"]),
        ("SQLite: ", [ROOT / "tests" / "sqlite"]),
        ("Document: ", [ROOT / "tests" / "document"]),
        (
            "Ledger: ",
            [ROOT / "tests" / name for name in ("ledger", "buckets", "simulation", "torture")],
        ),
        (
            "Workers: ",
            [ROOT / "tests" / name for name in ("worker", "supervisor", "acceptance", "torture")],
        ),
    ],
    ids=["every store", "SQLite", "Document", "Ledger", "Workers"],
)
def test_a_proof_is_of_every_store_unless_it_names_one(store: str, folders: list[Path]) -> None:
    proof = re.compile(rf"^- {store}(`test_[^\n]*(?:\n  [^\n]*)*)", re.MULTILINE)
    proofs = " ".join(proof.findall(GUARANTEES.read_text()))
    tests = set(re.findall(r"`(test_\w+)`", proofs))
    assert tests
    assert tests <= existing_tests(*folders)


def mib(size: int) -> str:
    return f"{size // 2**20} MiB"


def kib(size: int) -> str:
    return f"{size // 2**10} KiB"


def seconds(us: int) -> str:
    return f"{us // SECOND_US} s"


@pytest.mark.parametrize(
    ("row", "limits"),
    [
        ("names", [f"{arguments.NAME_BYTES} bytes"]),
        ("payload", [mib(arguments.PAYLOAD_BYTES)]),
        ("result", [kib(arguments.RESULT_BYTES)]),
        ("output", [kib(arguments.OUTPUT_BYTES)]),
        ("error text", [kib(arguments.ERROR_BYTES)]),
        ("history", [f"last {transitions.HISTORY_LIMIT} attempts"]),
        ("durations", [f"{arguments.LONGEST_SPAN_US // (365 * DAY_US)} years"]),
        (
            "`enqueue_many`",
            [f"{arguments.ENQUEUE_MANY_JOBS:,} jobs", mib(arguments.ENQUEUE_MANY_BYTES)],
        ),
        (
            "one commit |",
            [f"{commit.BATCH_OPERATIONS:,} operations", mib(commit.BATCH_BYTES)],
        ),
        ("operations waiting", [f"{commit.WAITING_CALLERS:,}"]),
        ("one commit's tries", [seconds(port.COMMIT_DEADLINE_US)]),
        ("one request to a bucket", [f"{asking.REQUEST_SECONDS} s"]),
        ("pending work", [seconds(commit.CLOSE_PATIENCE_US)]),
        ("waiting for a file's lock", [seconds(localdisk.LOCK_PATIENCE_US)]),
        ("memory of a silent writer", [f"{state.WRITER_MEMORY_US // MINUTE_US} minutes"]),
        ("claims", [f"{holding.HOLDINGS_KEPT:,}"]),
        ("depth", [f"{queue.DEFAULT_MAX_DEPTH}"]),
        ("dead", [f"{rules.DEAD_RETENTION_US // DAY_US} days"]),
        ("pruned", [f"{transaction.PRUNED_AT_ONCE} jobs"]),
    ],
)
def test_the_limits_are_those_of_the_code(row: str, limits: list[str]) -> None:
    rows = section(GUARANTEES, "Limits").splitlines()
    [found] = [line for line in rows if line.startswith(f"| {row}")]
    for limit in limits:
        assert limit in found


def test_the_warning_of_the_document_is_where_the_guarantees_say() -> None:
    told = " ".join(GUARANTEES.read_text().split())
    assert f"{document.RECORDS_BEFORE_WARNING:,} jobs" in told


def test_the_suites_that_the_guarantees_name_are_there() -> None:
    suites = set(re.findall(r"`(Test\w+)`", GUARANTEES.read_text()))
    tree = ast.parse((ROOT / "tests" / "conformance" / "test_ledger.py").read_text())
    assert suites == {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def test_every_module_is_on_the_map() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in SOURCE.rglob("*.py"):
        module = path.relative_to(SOURCE)
        if module.name == "__init__.py" or "suite" in module.parts:
            continue
        assert f"`{module.as_posix()}`" in text, module


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
        told = section(page, heading)
        for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", [name]):
            assert f"`{column}`" in told, f"{name}.{column}"
    db.close()
    assert f"This is schema {connection.SCHEMA}." in text


def test_every_event_of_the_ledger_is_described() -> None:
    path = DOCS / "reference" / "ledger-format.md"
    tags = [kind.__struct_config__.tag for kind in get_args(operations.Event)]
    rows = re.findall(r"^\| (\d+) \| ", section(path, "Events"), re.MULTILINE)
    assert rows == [str(tag) for tag in tags]
    page = path.read_text()
    assert f"This is format {entry.FORMAT}." in page
    assert f"This is format {opening.FORMAT}." in page
    for fields in (entry._Added.__struct_fields__, Record.__struct_fields__):
        assert {name for name in fields if name.removesuffix("_us") not in page} <= {"run_in_us"}


def test_what_the_bucket_page_says_of_the_ledger_is_so() -> None:
    told = " ".join((DOCS / "how-to" / "use-a-bucket.md").read_text().split())
    assert f"asks every {ledger.POLL_US / SECOND_US} s" in told
    assert f"in a folder every {ledger.POLL_LOCAL_US / SECOND_US} s" in told
    assert f"{SECOND_US // ledger.POLL_US} GETs a second" in told
    assert f"1 GET for each {pacing._LOOK_EVERY}" in told
    assert f"more than {seconds(buckettime.BEHIND_US)} after the bucket's clock" in told
    assert f"every {buckettime.ASK_EVERY_US // MINUTE_US} minutes" in told
    assert f"{2 * MINUTE_US // ledger.CHECK_EVERY_US} GETs a minute" in told
    assert f"up to {obstore._THREADS} entries at a time" in told
    assert f"{PAGE:,} entries a request" in told
    for service in (replies.S3, replies.GCS):
        for permissions in service.permissions.values():
            for permission in permissions.split(" and "):
                assert f"`{permission.removeprefix('storage.objects.')}`" in told.replace(
                    "storage.objects.", ""
                )
    for scheme in url._BUCKETS:
        assert f"`{scheme}://" in told
    for extra in url._BUCKETS.values():
        assert f"`casque[{extra}]`" in told


def test_what_the_pages_on_workers_say_is_so() -> None:
    told = " ".join((DOCS / "how-to" / "run-workers.md").read_text().split())
    lease, grace = seconds(options.DEFAULT_LEASE_US), seconds(options.DEFAULT_GRACE_US)
    pace, backoff = supervisor.Pace(), Backoff()
    assert f"{lease} after the last sign of life" in told
    assert f"`--grace`, {grace}" in told
    assert f"ever later, up to every {seconds(pace.longest_us)}" in told
    assert f"not ended {seconds(pace.beyond_grace_us)} after the grace is killed" in told
    assert f"the grace and the {seconds(pace.beyond_grace_us)} after it" in told
    assert f"up to every {seconds(deck._LONGEST_PAUSE_US)}" in told
    assert f"not gone {loop._CANCEL_SECONDS:g} s later" in told
    assert f"up to {backoff.base.total_seconds():g} s, 4 s, 8 s and so on, at most an hour" in told
    assert (backoff.factor, backoff.cap, deck.BEATS_PER_LEASE) == (2, timedelta(hours=1), 3)
    assert (options.DEFAULT_CONCURRENCY, tasks.MAX_ATTEMPTS) == (32, 10)
    assert f"by default {lease} after" in " ".join(GUARANTEES.read_text().split())
    there = set(re.findall(r"--[a-z][a-z-]+", __main__._parser().format_help())) - {"--help"}
    assert {option for option in there if option not in told} == set()


@pytest.mark.parametrize("page", [GUARANTEES, DOCS / "how-to" / "use-sqlite.md"], ids=named)
def test_the_pace_of_sqlite_is_as_the_pages_say(page: Path) -> None:
    told = " ".join(page.read_text().split())
    assert f"within about {watch.LOOK_LAZILY_US // 1000} ms" in told
    assert f"{store.IDENTIFY_EVERY_US / SECOND_US} s" in told


def test_every_form_of_an_sqlite_address_is_in_the_reference() -> None:
    told = section(QUEUE_REFERENCE, "open_store")
    for suffix in url._SQLITE_SUFFIXES:
        assert f"`{suffix}`" in told
    for durability in get_args(connection.Durability):
        assert f"`durability={durability}`" in told
    major, minor, _ = connection._OLDEST_SQLITE
    assert f"SQLite {major}.{minor} or later" in told
    assert f"{major}.{minor} or later" in (ROOT / "README.md").read_text()


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
