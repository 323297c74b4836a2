"""Pickle keys: checks a pickle, before it is loaded, for keys that are containers.

Each use of a tuple as a key hashes everything in it. A pickle of a hundred bytes can nest tuples
so that one hash takes years. So the items of sets and the keys of dicts must be single values.
"""

from __future__ import annotations

from typing import Any

from casque.errors import InvalidError

_MOST_STEPS = 2_000_000
_LARGEST_INT = 2**60
"""Larger ints can be chosen so that all have the same hash."""

_GETS = ("GET", "BINGET", "LONG_BINGET")
_PUTS = ("PUT", "BINPUT", "LONG_BINPUT")

_MARK = None
_Stack = list[bool | None]
"""For each value that a pickle has built: True if it is a single value. A mark is None."""


def require_plain_keys(data: bytes) -> None:
    """Raise InvalidError if a pickle has a container in a set, or as a key of a dict.

    Nothing is built: the stack of the unpickler is followed, with a flag for each value. Raises
    ValueError for data that is not a pickle.
    """
    from pickletools import genops  # noqa: PLC0415 - slow to load, and rarely needed

    stack: _Stack = []
    memo: dict[Any, bool] = {}
    for step, (opcode, argument, _) in enumerate(genops(data)):
        if step >= _MOST_STEPS:
            raise InvalidError(f"its pickle has more than {_MOST_STEPS:,} steps")
        name = opcode.name
        if name in _GETS:
            stack.append(memo.get(argument, False))
        elif name in _PUTS:
            memo[argument] = _last(stack)
        elif name == "MEMOIZE":
            memo[len(memo)] = _last(stack)
        elif name == "DUP":
            stack.append(_last(stack))
        elif name == "POP" and stack and stack[-1] is _MARK:
            stack.pop()
        else:
            before = [one.name for one in opcode.stack_before]
            if not all(_keys(name, _taken(stack, before))):
                raise InvalidError(
                    "a set, or a key of a dict, contains another container or a huge number"
                )
            is_single = not before and not _is_large(argument)
            for one in opcode.stack_after:
                stack.append(_MARK if one.name == "mark" else is_single)


def _taken(stack: _Stack, before: list[str]) -> list[bool]:
    """Take the values of an opcode off the stack. Returns those after the mark, if it needs one."""
    fixed = before.index("mark") if "mark" in before else len(before)
    taken: list[bool] = []
    if fixed < len(before):
        while (value := _popped(stack)) is not _MARK:
            taken.append(value)
        taken.reverse()
        for _ in range(fixed):
            _last(stack)
            stack.pop()
        return taken
    for _ in range(fixed):
        taken.append(_last(stack))
        stack.pop()
    return taken[::-1]


def _keys(name: str, taken: list[bool]) -> list[bool]:
    """Those values of an opcode that become items of a set, or keys of a dict."""
    if name in ("ADDITEMS", "FROZENSET"):
        return taken
    if name in ("SETITEMS", "DICT"):
        return taken[::2]
    return taken[1:2] if name == "SETITEM" else []


def _last(stack: _Stack) -> bool:
    if not stack or stack[-1] is _MARK:
        raise ValueError("it takes a value that is not there")
    return stack[-1]


def _popped(stack: _Stack) -> bool | None:
    if not stack:
        raise ValueError("it takes a mark that is not there")
    return stack.pop()


def _is_large(argument: object) -> bool:
    return isinstance(argument, int) and abs(argument) > _LARGEST_INT
