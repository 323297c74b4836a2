"""Calls that type checkers refuse also fail at run time, before anything is stored."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from casque import InvalidError

WRONG = Path(__file__).parent / "wrong.py"
TEXT = WRONG.read_text()
MARKED = {n for n, line in enumerate(TEXT.splitlines(), 1) if line.endswith("# wrong")}
# Python itself refuses these: they pass arguments that the called function does not accept.
PYTHONS_OWN = ("add('1')", "await send_email(1)", "await add(1)", "colour")
# In these only a type is wrong, so they run.
HARMLESS = ("text: str", "handle: Handle", "number: int", "await add.enqueue(1).result()")

Definition = ast.FunctionDef | ast.AsyncFunctionDef


def setting() -> dict[str, Any]:
    """The names that the correct definitions of the module create."""
    tree = ast.parse(TEXT)
    tree.body = [node for node in tree.body if not MARKED & set(_head(node))]
    names: dict[str, Any] = {"__name__": "wrong"}
    exec(compile(tree, WRONG.name, "exec"), names)
    return names


def _head(node: ast.stmt) -> Iterator[int]:
    if isinstance(node, Definition):
        yield from (one.lineno for one in node.decorator_list)


def wrong_statements() -> Iterator[ast.stmt]:
    for node in ast.parse(TEXT).body:
        if isinstance(node, Definition):
            if MARKED & set(_head(node)):
                yield node
            for inner in ast.walk(node):
                if isinstance(inner, ast.Expr | ast.Raise) and inner.lineno in MARKED:
                    yield inner


STATEMENTS = {
    code: node
    for node in wrong_statements()
    if not (code := ast.unparse(node)).startswith(HARMLESS)
}


def run(node: ast.stmt, names: dict[str, Any]) -> None:
    body = ast.parse("async def attempt(): pass").body
    [attempt] = body
    assert isinstance(attempt, ast.AsyncFunctionDef)
    attempt.body = [node]
    exec(compile(ast.Module(body, []), WRONG.name, "exec"), names)
    asyncio.run(names["attempt"]())


@pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")
@pytest.mark.parametrize("code", sorted(STATEMENTS))
def test_a_wrong_use_is_refused(code: str) -> None:
    names = setting()
    expected = TypeError if any(one in code for one in PYTHONS_OWN) else InvalidError
    with pytest.raises(expected):
        run(STATEMENTS[code], names)
    stored = 1 if code.startswith("add.enqueue(1).result(") else 0  # only `result` is wrong here
    assert names["app"].queue.stats().total == stored


def test_every_marked_line_is_tested_except_the_harmless_ones() -> None:
    assert len(STATEMENTS) >= len(MARKED) - len(HARMLESS)
