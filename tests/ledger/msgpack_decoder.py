"""A decoder of the part of MessagePack that a ledger uses, for `format_reader`."""

from __future__ import annotations

import struct
from typing import Any


class DamagedError(Exception):
    """An object is missing or is not what the page on the format describes."""


class Unpacker:
    def __init__(self, content: bytes) -> None:
        self._content = content
        self._place = 0

    def whole(self) -> Any:
        """Return the only value in the content."""
        value = self.value()
        if self._place != len(self._content):
            raise DamagedError("there is something after the value")
        return value

    def value(self) -> Any:
        [first] = self._take(1)
        if first <= 0x7F:
            return first
        if first <= 0x8F:
            return self._map(first & 0x0F)
        if first <= 0x9F:
            return self._array(first & 0x0F)
        if first <= 0xBF:
            return self._take(first & 0x1F).decode()
        if first >= 0xE0:
            return first - 0x100
        return self._other(first)

    def _other(self, first: int) -> Any:
        if first in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[first]
        if 0xC4 <= first <= 0xC6:
            return self._take(self._number(1 << (first - 0xC4)))
        if first in (0xCA, 0xCB):
            return struct.unpack(">f" if first == 0xCA else ">d", self._take(4 << first - 0xCA))[0]
        if 0xCC <= first <= 0xD3:
            return self._number(1 << (first & 3), signed=first >= 0xD0)
        if 0xD9 <= first <= 0xDB:
            return self._take(self._number(1 << (first - 0xD9))).decode()
        if first in (0xDC, 0xDD):
            return self._array(self._number(2 << (first - 0xDC)))
        if first in (0xDE, 0xDF):
            return self._map(self._number(2 << (first - 0xDE)))
        raise DamagedError(f"the type {first:#x} does not occur")

    def _take(self, count: int) -> bytes:
        taken = self._content[self._place : self._place + count]
        if len(taken) < count:
            raise DamagedError("it was cut short")
        self._place += count
        return taken

    def _number(self, size: int, *, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "big", signed=signed)

    def _array(self, count: int) -> list[Any]:
        return [self.value() for _ in range(count)]

    def _map(self, count: int) -> dict[Any, Any]:
        return {self.value(): self.value() for _ in range(count)}
