"""JSON types: which Python types can be JSON, and how values are encoded and decoded.

msgspec does most of it. Pydantic models are recognised by two methods, so that
pydantic works where the user has it and is never imported here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

_EXACT: dict[Any, tuple[type, ...]] = {
    str: (str,),
    int: (int,),
    float: (float, int),
    bool: (bool,),
}
_REMEDY = (
    "Use JSON's own types, dataclasses, msgspec structs, pydantic models, TypedDict, NamedTuple, "
    "enums, datetimes, UUID, Decimal or bytes; for anything else pass a reference, such as an id."
)


def is_model(kind: object) -> bool:
    """True if it has pydantic's `model_dump` and `model_validate`."""
    return callable(getattr(kind, "model_dump", None)) and callable(
        getattr(kind, "model_validate", None)
    )


def _is_known(kind: type) -> bool:
    return kind is object or is_model(kind)


def _plain(value: Any) -> Any:
    if is_model(type(value)):
        # In the form that `model_validate` accepts: by alias, and without computed fields.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, tuple | frozenset | NoneType):  # msgspec encodes these as values
        raise TypeError(f"a {type(value).__qualname__} cannot be a key in JSON")
    raise TypeError(f"{type(value).__qualname__} cannot be encoded as JSON")


def _made(kind: type, value: Any) -> Any:
    if kind is object:
        return value
    return kind.model_validate(value)  # type: ignore[attr-defined] # `unfit` let only models through


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)
encode = _ENCODER.encode


def decoder(hint: Any) -> Callable[[Any], Any]:
    """A function that makes a value of this type from JSON, or raises."""
    return msgspec.json.Decoder(hint, dec_hook=_made).decode


def unfit(hint: Any) -> str | None:
    """Return why no value of this type can be JSON, and the remedy; None if values can be JSON.

    Raises NameError or AttributeError if the type refers to something that is not defined yet.
    """
    # Imported late: `import casque` does not need it, and it is used once per parameter.
    from msgspec import inspect  # noqa: PLC0415

    try:
        inside = inspect.type_info(hint)
    except (NameError, AttributeError):
        raise
    except Exception as error:  # noqa: BLE001 - any error means that the hint is unusable
        return f"{error}. {_REMEDY}"
    for node in _walk(inside):
        if isinstance(node, inspect.CustomType) and not _is_known(node.cls):
            return f"{node.cls.__qualname__} cannot be encoded as JSON. {_REMEDY}"
    return None


def _walk(root: Any) -> Iterator[Any]:
    """All parts of a type, each once: types may contain themselves."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if isinstance(node, tuple):
            waiting.extend(node)
        elif isinstance(node, msgspec.Struct) and id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting.extend(getattr(node, name) for name in node.__struct_fields__)


def exact(hint: Any) -> tuple[type, ...] | None:
    """Return the classes that fit a hint of str, int, float, bool or their union; else None.

    Values are checked before they become JSON, where a datetime is text and fits `str`.
    """
    if get_origin(hint) is Annotated:
        return exact(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        classes: tuple[type, ...] = ()
        for one in get_args(hint):
            own = (NoneType,) if one is NoneType else exact(one)
            if own is None:
                return None
            classes += own
        return classes
    return _EXACT.get(hint) if isinstance(hint, type) else None


def certain(hint: Any) -> type | None:
    """Return the class whose instances all fit the hint without a check, or None."""
    return hint if isinstance(hint, type) and hint in _EXACT else None


def mismatch(expected: tuple[type, ...], value: object) -> str:
    """Return a message, in msgspec's words, for a value of a wrong type."""
    names = " | ".join(dict.fromkeys(_json_name(kind) for kind in expected))
    return f"Expected `{names}`, got `{_json_name(type(value))}`"


def _json_name(kind: type) -> str:
    return "null" if kind is NoneType else kind.__name__


def why_not(value: object, error: Exception) -> str:
    """Return why this value could not be encoded."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "it contains a lone surrogate, which is not valid text"
    return str(error) or f"{type(error).__name__} while encoding a {type(value).__qualname__}"


def non_finite(value: object) -> float | None:
    """Return the first NaN or infinity in a value, which becomes null in JSON; None if none."""
    waiting = [msgspec.to_builtins(value, enc_hook=_plain)]
    while waiting:
        one = waiting.pop()
        if isinstance(one, float) and not math.isfinite(one):
            return one
        if isinstance(one, dict):
            waiting.extend(one.values())
        elif isinstance(one, list | tuple | set | frozenset):
            waiting.extend(one)
    return None
