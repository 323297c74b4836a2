"""Command template: a command line, in which the quoted path replaces `{path}`.

Quoting for `sh` is safe only where an unquoted word, or a part of it, may stand. A template
with `{path}` elsewhere is refused: a file name could run commands. So is one whose quotes
nest, or that makes the shell read words again: it is safer in a script.
"""

from __future__ import annotations

import re
from shlex import quote

from casque.errors import InvalidError

PLACE = "{path}"

_NESTED = re.compile(r"\(\(|\[\[|<<|\beval\b|`")
"""After these, a shell may read a word again, as a command, a number or a text with commands."""
_WORD_ENDS = frozenset(" \t\n;&|()")


def checked_template(template: str) -> str:
    """Return the template. InvalidError if it has no `{path}`, or one at an unsafe place."""
    if PLACE not in template:
        raise InvalidError(
            f"the command has no {PLACE}: write it where the path of the file belongs, as in "
            f"'process {PLACE}'."
        )
    for place in (one.start() for one in re.finditer(re.escape(PLACE), template)):
        if (where := _unsafe(template[:place])) is not None:
            raise InvalidError(
                f"{PLACE} stands {where} in the command, where the name of a file could run other "
                f"commands. Write {PLACE} by itself: it is quoted for you."
            )
    return template


def filled(template: str, path: str) -> str:
    """The command for a path."""
    return template.replace(PLACE, quote(path))


def _unsafe(before: str) -> str | None:
    """Describe an unsafe place of `{path}`; None if it is safe. `before` is the text up to it."""
    quote_mark, is_comment, is_nested = "", False, False
    previous, skip = "\n", False
    for character in before:
        if skip:
            skip, previous = False, "x"
            continue
        if is_comment:
            is_comment = character != "\n"
        elif quote_mark == "'":
            quote_mark = "" if character == "'" else quote_mark
        elif character == "\\":
            skip = True
        elif quote_mark and previous == "$" and character in "({":
            is_nested = True  # a quote mark in there does not end the outer quotes
        elif quote_mark:
            quote_mark = "" if character == quote_mark else quote_mark
        elif character in "'\"":
            quote_mark = character
        elif character == "#" and previous in _WORD_ENDS:
            is_comment = True
        previous = character
    found = {
        "inside quotes": bool(quote_mark),
        "after $( or ${ inside quotes": is_nested,
        "inside a comment": is_comment,
        "after a backslash": skip,
        "after $": before.endswith("$"),
    }
    if (nested := _NESTED.search(before)) is not None:
        return f"after {nested[0]}"
    return next((where for where, is_there in found.items() if is_there), None)
