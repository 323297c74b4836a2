"""JSON types: which Python types can be JSON, and how a value becomes it and comes back.

msgspec does most. Pydantic's models are known by their two methods, so that
pydantic is used where the user has it and never imported here.
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
    "enums, datetimes, UUID, Decimal or bytes; pass what stands for anything else, an id say."
)


def is_model(kind: object) -> bool:
    """True for a class of pydantic's, or one that behaves like it."""
    return callable(getattr(kind, "model_dump", None)) and callable(
        getattr(kind, "model_validate", None)
    )


def _is_known(kind: type) -> bool:
    return kind is object or is_model(kind)


def _plain(value: Any) -> Any:
    if is_model(type(value)):
        # In the form that `model_validate` takes: by alias, and without what is computed.
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if isinstance(value, tuple | frozenset | NoneType):  # as a value msgspec knows it
        raise TypeError(f"a {type(value).__qualname__} cannot be a key in JSON")
    raise TypeError(f"nothing says how a {type(value).__qualname__} becomes JSON")


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
    """Why no value of this type can be JSON, and what to do; None when it can.

    Raises NameError or AttributeError when it refers to something that is not defined yet.
    """
    # Asked once per parameter; msgspec's own reading of types is not for `import casque` to load.
    from msgspec import inspect  # noqa: PLC0415

    try:
        inside = inspect.type_info(hint)
    except (NameError, AttributeError):
        raise
    except Exception as error:  # noqa: BLE001 - whatever it stumbles over, the hint is not for it
        return f"{error}. {_REMEDY}"
    for node in _walk(inside):
        if isinstance(node, inspect.CustomType) and not _is_known(node.cls):
            return f"nothing says how a {node.cls.__qualname__} becomes JSON. {_REMEDY}"
    return None


def _walk(root: Any) -> Iterator[Any]:
    """Everything that a type consists of, each once: types may contain themselves."""
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
    """The classes that a plain hint takes.

    A datetime becomes text in JSON, and text is what a `str` takes: only the
    value itself shows that the caller meant something else.
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
    """The class whose values all fit the hint: they need not be decoded again to know it."""
    return hint if isinstance(hint, type) and hint in _EXACT else None


def mismatch(expected: tuple[type, ...], value: object) -> str:
    """As msgspec says it, of a value that is not JSON yet."""
    names = " | ".join(dict.fromkeys(_json_name(kind) for kind in expected))
    return f"Expected `{names}`, got `{_json_name(type(value))}`"


def _json_name(kind: type) -> str:
    return "null" if kind is NoneType else kind.__name__


def why_not(value: object, error: Exception) -> str:
    """Why this could not be made JSON."""
    if isinstance(error, RecursionError):
        return "it contains itself, or is nested too deeply"
    if isinstance(error, UnicodeEncodeError):
        return "it holds a lone surrogate, which is no text"
    return str(error) or f"{type(error).__name__} while encoding a {type(value).__qualname__}"


def non_finite(value: object) -> float | None:
    """The first NaN or infinity in a value that was encoded; JSON made a null of it."""
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
