"""Terminal text: makes any text safe to print on a terminal; counts and full stops."""

from __future__ import annotations


def plain(text: str) -> str:
    r"""The text on one line, with unprintable characters as escapes: `\n`, `\x1b`."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else _escaped(one) for one in text)


def plain_lines(text: str) -> str:
    """Like `plain`, but keeps the line breaks."""
    return "\n".join(map(plain, text.expandtabs().splitlines()))


def sentence(text: str) -> str:
    """The text with a full stop at its end, unless it ends like a sentence."""
    return text if text.endswith((".", "?", "!", "…")) else f"{text}."


def cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()


def counted(count: int, noun: str) -> str:
    """`1 job`, `2 jobs`, `1,000 jobs`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def signal_name(number: int) -> str:
    """`SIGKILL`, or `signal 40` for one that has no name."""
    from signal import Signals  # noqa: PLC0415 - not needed to enqueue

    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"
