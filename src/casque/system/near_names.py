"""Near names: the known names that a mistyped name was probably meant to be.

A typing slip changes little inside one word. Real names are also near each other, but at the edges
of their words: `charge` and `recharge`, `order` and `orders`, `import` and `export`. So the
names are compared word by word, and not by how much they have in common.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

_MOST = 3
_WORD = re.compile(r"[^\W\d_]+|\d+")
_TWINS = re.compile(r"(.)\1+")
_ENDINGS = "dnrsy"
"""Last letters that make another word: `created`, `driven`, `user`, `orders`, `daily`."""
_SWAPPED_FROM, _MISSING_FROM, _WRONG_FROM = 4, 5, 7
"""How many letters a word must have for each slip. In short words one wrong letter is often another
word: `charge` and `change`, `mail` and `fail`."""


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three known names from which one typing slip leads to `name`.

    A slip is two swapped letters, a letter too many, missing or wrong, a letter doubled in the
    wrong place, or another separator or case. Numbers are not mistyped: `part-1` is not near
    `part-2`.
    """
    words = _words(name)
    near = (one for one in known if one != name and _is_slip(words, _words(one)))
    return [one for _, one in zip(range(_MOST), near, strict=False)]


def did_you_mean(near: list[str]) -> str:
    """Return the question as text, as in "did you mean 'a', 'b' or 'c'?"."""
    *first, last = map(repr, near)
    return f"did you mean {', '.join(first)} or {last}?" if first else f"did you mean {last}?"


def _words(name: str) -> list[str]:
    return _WORD.findall(name.casefold())


def _is_slip(typed: list[str], meant: list[str]) -> bool:
    if "".join(typed) == "".join(meant):
        return bool(typed)
    if len(typed) != len(meant):
        return False
    pairs = [pair for pair in zip(typed, meant, strict=True) if pair[0] != pair[1]]
    return len(pairs) == 1 and _is_slip_in_word(*pairs[0])


def _is_slip_in_word(typed: str, meant: str) -> bool:
    short, long = sorted((typed, meant), key=len)
    if long.isdecimal() or short.isdecimal():
        return False
    if _TWINS.sub(r"\1", short) == _TWINS.sub(r"\1", long):
        return len(long) >= _MISSING_FROM
    first = next((at for at, letter in enumerate(short) if letter != long[at]), len(short))
    if len(short) < len(long):
        is_other_word = first == 0 or (first == len(short) and long[-1] in _ENDINGS)
        is_one_more = short[first:] == long[first + 1 :]
        return is_one_more and not is_other_word and len(long) >= _MISSING_FROM
    if short[first : first + 2] == long[first : first + 2][::-1]:
        return short[first + 2 :] == long[first + 2 :] and len(long) >= _SWAPPED_FROM
    is_one_wrong = short[first + 1 :] == long[first + 1 :]
    return is_one_wrong and 0 < first < len(long) - 1 and len(long) >= _WRONG_FROM
