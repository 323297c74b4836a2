"""Calls: the arguments and the result of a function as JSON, checked by its type hints.

The arguments of a call become a JSON object, by argument name. Positional-only and starred
arguments cannot be passed by name; they are in a list under "*". Before the encoded arguments are
stored, they are decoded again by the hints. So a job that does not fit its task is refused where it
is enqueued.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from typing import Any

import msgspec

from casque.checks import RESULT_BYTES
from casque.errors import InvalidError
from casque.tasks import json_types

STARRED = "*"
"""The key of the values without a name."""

_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LIST = msgspec.json.Decoder(list[msgspec.Raw])


class ArgumentMismatchError(InvalidError):
    """The arguments do not fit this version of the task."""


class _Slot:
    """Checks and decodes one parameter."""

    __slots__ = ("certain", "declared", "decode", "exact")

    def __init__(self, hint: Any) -> None:
        self.certain = json_types.certain(hint)
        self.decode = json_types.decoder(hint)
        self.exact = json_types.exact(hint)
        self.declared = inspect.formatannotation(hint)


class _Fields(msgspec.Struct, frozen=True):
    """The parameters and the result, by their hints."""

    named: Mapping[str, _Slot]
    first: Sequence[tuple[str, _Slot]]
    """The positional-only parameters, in order."""
    rest: _Slot | None
    """The values in *args."""
    extra: _Slot | None
    """The values in **kwargs."""
    result: Callable[[Any], Any]


class Call:
    """Encodes and decodes the arguments and the result of one function."""

    def __init__(self, function: Callable[..., Any], task: str) -> None:
        self._function = function
        self._task = task
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        of_kind: dict[object, list[str]] = {}
        for one in parameters:
            of_kind.setdefault(one.kind, []).append(one.name)
        self._first = of_kind.pop(Parameter.POSITIONAL_ONLY, [])
        self._middle = of_kind.pop(Parameter.POSITIONAL_OR_KEYWORD, [])
        self._named = frozenset(self._middle + of_kind.pop(Parameter.KEYWORD_ONLY, []))
        self._required = frozenset(
            one.name
            for one in parameters
            if one.name in self._named and one.default is Parameter.empty
        )
        self._is_plain = not self._first and not of_kind  # the rest is *args and **kwargs
        self._fields: _Fields | None = None
        try:
            self._resolve()
        except (NameError, AttributeError):
            # A name that is defined further down, or in a module that is still being
            # imported: it exists at the first use.
            self._fields = None

    # -- to JSON ---------------------------------------------------------------

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Return the payload of this call. Raises InvalidError that names the wrong argument."""
        return self._encode(self._bind(args, kwargs), is_certain=self._is_plain)

    def encode_named(self, payload: Mapping[str, Any]) -> bytes:
        """Like `encode`, from the payload as a dict."""
        return self._encode(payload, is_certain=False)

    def _encode(self, given: Mapping[str, Any], *, is_certain: bool) -> bytes:
        """Encode arguments. With `is_certain`, their names fit, and only types need a check."""
        fields = self._fields or self._known()
        named = fields.named
        for name, value in given.items():
            slot = named.get(name)
            if slot is not None and type(value) is slot.certain:
                continue
            is_certain = False
            if slot is not None and slot.exact is not None and not isinstance(value, slot.exact):
                raise self._unfit(name, json_types.mismatch(slot.exact, value), slot)
        payload = encode_unchecked(self._task, given)
        if not is_certain:
            self._take(payload, fields)
        return payload

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        if self._is_plain and len(args) <= len(self._middle):
            given = dict(zip(self._middle, args, strict=False))
            if not kwargs:
                if self._required <= given.keys():
                    return given
            elif kwargs.keys() <= self._named and given.keys().isdisjoint(kwargs):
                given.update(kwargs)
                if self._required <= given.keys():
                    return given
        return self._bind_any(args, kwargs)

    def _bind_any(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Bind arguments to parameters of any kind. Raises InvalidError that names a wrong one."""
        try:
            bound = self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidError(f"{self._task}: {error}; the signature is {self}.") from None
        named: dict[str, Any] = {}
        starred: list[Any] = []
        for name, value in bound.items():
            kind = self._signature.parameters[name].kind
            if kind is Parameter.POSITIONAL_ONLY:
                starred.append(value)
            elif kind is Parameter.VAR_POSITIONAL:
                starred.extend(value)
            elif kind is Parameter.VAR_KEYWORD:
                named.update(value)
            else:
                named[name] = value
        if STARRED in named:
            raise InvalidError(f"{self._task}: an argument cannot be named {STARRED!r}; rename it.")
        if starred:
            named[STARRED] = starred
        return named

    # -- from JSON -------------------------------------------------------------

    def decode(self, payload: bytes) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional and named arguments of a payload.

        ArgumentMismatchError names a bad one; InvalidError: no version of the task could take it.
        """
        fields = self._fields or self._known()
        starred, named = self._take(payload, fields)
        if len(starred) <= len(self._first):
            return starred, named
        # Starred values follow the named parameters, which must then be positional too.
        args = starred[: len(self._first)]
        for name in self._middle:
            default = self._signature.parameters[name].default
            args.append(named.pop(name) if name in named else default)
        return args + starred[len(self._first) :], named

    def _take(self, payload: bytes, fields: _Fields) -> tuple[list[Any], dict[str, Any]]:
        """Return the positional arguments and the keyword arguments of a payload."""
        try:
            raws = _OBJECT.decode(payload) if payload else {}
        except msgspec.DecodeError as error:
            raise InvalidError(
                f"{self._task}: the payload is not a JSON object of arguments ({error}); the "
                f"signature is {self}."
            ) from error
        if STARRED in raws:
            raws = self._spread(raws, fields)
        starred: list[Any] = []
        named: dict[str, Any] = {}
        for name, raw in raws.items():
            slot = fields.named.get(name)
            if slot is None:
                if name == STARRED:
                    starred = self._take_starred(raw, fields)
                    continue
                slot = fields.extra
                if slot is None:
                    raise ArgumentMismatchError(
                        f"{self._task}: unknown argument `{name}`; the signature is {self}."
                    )
            named[name] = self._value(name, raw, slot)
        if not self._required <= named.keys() or len(starred) < len(fields.first):
            self._refuse_missing(starred, named)
        return starred, named

    def _spread(self, raws: dict[str, msgspec.Raw], fields: _Fields) -> dict[str, msgspec.Raw]:
        """Name the positional values of a producer that does not know the signature.

        Our own payloads need no change: they name every parameter before *args that was given.
        """
        if not self._middle or self._middle[0] in raws:
            return raws
        if fields.rest is not None and self._middle[0] not in self._required:
            return raws  # its default holds
        values = self._raw_list(raws[STARRED])
        surplus = values[len(fields.first) :]
        names = self._middle[: len(surplus)]
        if not names or any(name in raws for name in names):
            return raws
        rest = [*values[: len(fields.first)], *surplus[len(names) :]]
        spread = {**dict(zip(names, surplus, strict=False)), **raws}
        spread.pop(STARRED)
        if rest:
            spread[STARRED] = msgspec.Raw(msgspec.json.encode(rest))
        return spread

    def _take_starred(self, raw: msgspec.Raw, fields: _Fields) -> list[Any]:
        raws = self._raw_list(raw)
        values = [
            self._value(name, one, slot)
            for (name, slot), one in zip(fields.first, raws, strict=False)
        ]
        left = raws[len(fields.first) :]
        if left and fields.rest is None:
            raise ArgumentMismatchError(
                f"{self._task}: too many positional values ({len(raws)}); the signature is {self}."
            )
        rest = fields.rest
        return values + [self._value(STARRED, one, rest) for one in left if rest is not None]

    def _raw_list(self, raw: msgspec.Raw) -> list[msgspec.Raw]:
        try:
            return _LIST.decode(raw)
        except msgspec.DecodeError as error:
            raise InvalidError(f"{self._task}: argument `{STARRED}`: {error}.") from error

    def _value(self, name: str, raw: msgspec.Raw, slot: _Slot) -> Any:
        try:
            return slot.decode(raw)
        except Exception as error:  # the user's types may raise anything
            if type(error) is msgspec.DecodeError:  # not JSON: nobody has read this part so far
                raise InvalidError(f"{self._task}: argument `{name}`: {error}.") from error
            raise self._unfit(name, str(error), slot) from error

    def _refuse_missing(self, starred: list[Any], named: Mapping[str, Any]) -> None:
        absent = {*self._first[len(starred) :], *(self._required - named.keys())}
        for name, one in self._signature.parameters.items():
            if name in absent and one.default is Parameter.empty:
                raise ArgumentMismatchError(
                    f"{self._task}: argument `{name}` is missing; the signature is {self}."
                )

    # -- the result ------------------------------------------------------------

    def encode_result(self, value: object) -> bytes | None:
        """Return the result as JSON; None for None. Raises InvalidError if it cannot be stored."""
        if value is None:
            return None
        try:
            result = json_types.encode(value)
        except Exception as error:  # the user's types may raise anything
            raise InvalidError(
                f"{self._task}: the result is not JSON: {json_types.why_not(value, error)}. Return "
                "plain values, dataclasses or models."
            ) from error
        if b"null" in result and (found := json_types.non_finite(value)) is not None:
            raise InvalidError(
                f"{self._task}: the result is not JSON: JSON has no {found}. Return None or text."
            )
        if len(result) > RESULT_BYTES:
            raise InvalidError(
                f"{self._task}: the result is {len(result):,} bytes; at most {RESULT_BYTES:,} are "
                "stored. Store it elsewhere and return its address."
            )
        return result

    def decode_result(self, result: bytes | None) -> Any:
        """Return the result, converted to the type of the return annotation."""
        if result is None:
            return None
        fields = self._fields or self._known()
        try:
            return fields.result(result)
        except Exception as error:  # the user's types may raise anything
            raise InvalidError(
                f"{self._task}: the result does not fit its return annotation: {error}."
            ) from error

    # -- hints -----------------------------------------------------------------

    def _known(self) -> _Fields:
        try:
            return self._resolve()
        except (NameError, AttributeError) as error:
            where = _mentioning(self._function, error.name)
            raise InvalidError(
                f"{self._task}: {where}: {error}, so its type is unknown when the task is used. "
                "Define it at the top of a module, and import it outside `if TYPE_CHECKING`."
            ) from error

    def _resolve(self) -> _Fields:
        try:
            hints = typing.get_type_hints(self._function, include_extras=True)
        except (NameError, AttributeError):
            raise
        except Exception as error:  # a hint in quotes may be any code
            raise InvalidError(
                f"{self._task}: its type hints cannot be read: {error}. Correct them."
            ) from error
        parameters = self._signature.parameters
        slots = {name: self._slot(name, hints.get(name, Any)) for name in parameters}
        by_kind = {one.kind: slots[name] for name, one in parameters.items()}
        self._fields = _Fields(
            {name: slots[name] for name in self._named},
            [(name, slots[name]) for name in self._first],
            by_kind.get(Parameter.VAR_POSITIONAL),
            by_kind.get(Parameter.VAR_KEYWORD),
            self._returned(hints.get("return", Any)),
        )
        return self._fields

    def _slot(self, name: str, hint: Any) -> _Slot:
        if (problem := json_types.unfit(hint)) is None:
            return _Slot(hint)
        raise InvalidError(
            f"{self._task}: parameter `{name}: {inspect.formatannotation(hint)}` cannot be passed "
            f"as JSON: {problem}"
        )

    def _returned(self, hint: Any) -> Callable[[Any], Any]:
        if hint in (typing.NoReturn, typing.Never):
            hint = None
        if (problem := json_types.unfit(hint)) is None:
            return json_types.decoder(hint)
        raise InvalidError(
            f"{self._task}: its return type `{inspect.formatannotation(hint)}` cannot be stored "
            f"as JSON: {problem}"
        )

    # -- messages --------------------------------------------------------------

    def _unfit(self, name: str, problem: str, slot: _Slot) -> ArgumentMismatchError:
        # The form of msgspec's messages: "Expected … - at `$.inner`".
        problem, _, inner = problem.partition(" - at `$")
        return ArgumentMismatchError(
            f"{self._task}: argument `{name}{inner.rstrip('`')}`: {problem}; the task declares "
            f"`{name}: {slot.declared}`."
        )

    def __str__(self) -> str:
        written = [
            one.replace(annotation=_written(one.annotation))
            for one in self._signature.parameters.values()
        ]
        returned = _written(self._signature.return_annotation)
        return f"{self._task}{inspect.Signature(written, return_annotation=returned)}"


def encode_unchecked(task: str, given: Mapping[str, Any]) -> bytes:
    """Return the payload for a task that is not registered here: any JSON is accepted."""
    try:
        payload = json_types.encode(given)
    except Exception as error:  # the caller's types may raise anything
        for name, value in given.items():
            try:
                json_types.encode(value)
            except Exception as own:  # noqa: BLE001 - as above
                raise InvalidError(
                    f"{task}: argument `{name}`: {json_types.why_not(value, own)}. Pass a "
                    "reference to it, such as an id."
                ) from error
        raise InvalidError(f"{task}: the arguments are not JSON: {error}.") from error
    if b"null" in payload:
        for name, value in given.items():
            found = json_types.non_finite(value)
            if found is not None:
                raise InvalidError(
                    f"{task}: argument `{name}`: JSON has no {found}. Pass None or text."
                )
    return payload


class _Written(str):
    """A string annotation that `inspect` prints as in the source, without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _written(annotation: Any) -> Any:
    return _Written(annotation) if isinstance(annotation, str) else annotation


def _mentioning(function: Callable[..., Any], name: str | None) -> str:
    for parameter, hint in function.__annotations__.items():
        if name is not None and name in str(hint):
            return "its return annotation" if parameter == "return" else f"argument `{parameter}`"
    return "one of its type hints"
