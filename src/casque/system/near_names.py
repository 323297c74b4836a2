"""Near names: the known names that a mistyped name was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_LIKENESS = 0.8
"""From 0 to 1. Two swapped letters leave 0.8 of a name of five letters."""
_MOST = 3
_DIGITS = str.maketrans("", "", "0123456789")


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the known names that are almost `name`, nearest first, at most three.

    Names that differ only in their digits, as `part-1` and `part-2` do, are not mistyped.
    """
    from difflib import get_close_matches  # noqa: PLC0415 - rarely needed, and slow to load

    letters = name.translate(_DIGITS)
    others = [one for one in known if one != name and one.translate(_DIGITS) != letters]
    return get_close_matches(name, others, _MOST, _LIKENESS)


def did_you_mean(near: list[str]) -> str:
    """Return the question as text, as in "did you mean 'a', 'b' or 'c'?"."""
    *first, last = map(repr, near)
    return f"did you mean {', '.join(first)} or {last}?" if first else f"did you mean {last}?"
