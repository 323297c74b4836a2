"""The pages are true: their code runs, their links work, the tests and files they name exist."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from casque.testing import BucketSuite
from tests.docs.following import FENCE, ROOT, Reader, blocks
from tests.docs.pages import DOCS, GUARANTEES, SOURCE, named

MAKEFILE = ROOT / "Makefile"
README, TUTORIAL = ROOT / "README.md", DOCS / "tutorial.md"
WITH_CODE = [
    DOCS / "reference" / "tasks.md",
    *sorted(page for page in (DOCS / "how-to").glob("*.md") if "```python" in page.read_text()),
]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md")), ROOT / "llms.txt"]


@pytest.fixture
def reader_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Path], Reader]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a file may change within a second
    monkeypatch.setenv("PYTHONUNBUFFERED", "1")  # as on a terminal
    return lambda page: Reader(
        page,
        tmp_path,
        lambda: capsys.readouterr().out,
        runs_commands=page in {README, TUTORIAL},
    )


@pytest.mark.parametrize("page", WITH_CODE, ids=named)
def test_the_code_of_a_page_runs_and_prints_what_the_page_says(
    page: Path, reader_of: Callable[[Path], Reader]
) -> None:
    reader = reader_of(page)
    reader.follow()
    assert reader.ran


def test_the_readme_can_be_followed_from_an_empty_folder(
    reader_of: Callable[[Path], Reader],
) -> None:
    reader = reader_of(README)
    reader.follow()
    assert (reader.ran, reader.started) == (1, 1)
    assert reader.commands > 3


def test_the_tutorial_can_be_followed_in_two_terminals(
    reader_of: Callable[[Path], Reader],
) -> None:
    reader = reader_of(TUTORIAL)
    reader.follow()
    assert reader.ran > 5
    assert reader.commands > 1
    assert (reader.started, reader.killed) == (2, 1)


def test_the_readme_names_targets_of_make_that_exist() -> None:
    targets = re.findall(r"^\$ make (\w+)", README.read_text(), re.MULTILINE)
    assert targets == ["demo", "test"]
    assert set(targets) <= set(re.findall(r"^(\w+):", MAKEFILE.read_text(), re.MULTILINE))


def test_the_readme_is_short() -> None:
    assert len(README.read_text().splitlines()) < 200


def test_the_store_that_is_proven_on_its_page_passes_the_suite(tmp_path: Path) -> None:
    page = DOCS / "how-to" / "prove-your-own-store.md"
    proof = "\n".join(block.body for block in blocks(page) if block.language == "python")
    (tmp_path / "test_shelf.py").write_text(proof)
    # Finding a failure is enough here: shrinking it would take longer than this test may.
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
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-k", some, "test_shelf.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert run.returncode == 0, run.stdout
    count = 4 + sum("processes" not in name for name in promises)
    assert f"{count} passed" in run.stdout


def prose(path: Path) -> str:
    """The page without its code blocks."""
    return FENCE.sub("", path.read_text())


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


@cache
def names_in(path: Path) -> frozenset[str]:
    return frozenset(
        node.name
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    )


def existing_tests(*folders: Path) -> set[str]:
    return {name for folder in folders for path in folder.rglob("*.py") for name in names_in(path)}


def test_every_guarantee_names_tests_that_exist() -> None:
    text = GUARANTEES.read_text()
    guarantees = re.split(r"^## (?=\d)", text[: text.index("## Bounds")], flags=re.MULTILINE)[1:]
    assert len(guarantees) == 12
    there = existing_tests(SOURCE / "testing", ROOT / "tests")
    for guarantee in guarantees:
        proofs = re.findall(r"`(test_\w+)`", guarantee)
        assert proofs, guarantee.partition("\n")[0]
    assert set(re.findall(r"`(test_\w+)`", text)) <= there


@pytest.mark.parametrize(
    ("store", "folders"),
    [
        ("", [SOURCE / "testing" / "suite"]),
        ("SQLite: ", [ROOT / "tests" / name for name in ("sqlite", "model")]),
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


def test_the_suites_that_the_guarantees_name_are_there() -> None:
    suites = set(re.findall(r"`(Test\w+)`", GUARANTEES.read_text()))
    tree = ast.parse((ROOT / "tests" / "conformance" / "test_ledger.py").read_text())
    assert suites == {node.name for node in tree.body if isinstance(node, ast.ClassDef)}


def packages() -> list[Path]:
    return [one.parent for one in SOURCE.rglob("__init__.py") if one.parent != SOURCE]


@pytest.mark.parametrize("package", packages(), ids=lambda one: str(one.relative_to(SOURCE)))
def test_a_package_lists_its_modules(package: Path) -> None:
    tree = ast.parse((package / "__init__.py").read_text())
    listed = re.findall(r"^(\w+/?)  +\S", ast.get_docstring(tree) or "", re.MULTILINE)
    there = [one.stem for one in package.glob("*.py") if one.stem != "__init__"]
    there += [f"{one.parent.name}/" for one in package.glob("*/__init__.py")]
    assert sorted(listed) == sorted(there)


def test_the_tour_names_what_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    tour = re.findall(r"`([\w/]+\.py)(?::([\w.]+))?`", text)
    assert len([name for _, name in tour if name]) > 15
    for file, name in tour:
        found = [one for one in (SOURCE / file, *SOURCE.rglob(file)) if one.is_file()]
        assert found, file
        assert not name or defines(ast.parse(found[0].read_text()), name.split(".")), (file, name)


def defines(tree: ast.Module | ast.ClassDef, names: list[str]) -> bool:
    """True if that function or class is defined, within the classes named before it."""
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for one in tree.body:
        if isinstance(one, kinds) and one.name == names[0]:
            return len(names) == 1 or (isinstance(one, ast.ClassDef) and defines(one, names[1:]))
    return False
