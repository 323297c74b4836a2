"""Arguments of tasks: every type that JSON can carry is accepted, all others are refused."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import ModuleType
from typing import Annotated, Any, Literal, NamedTuple, NoReturn, Optional, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest

from casque import App, InvalidError, Task

app = App("memory://")


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mood(enum.StrEnum):
    GOOD = "good"


@dataclass
class Point:
    x: int
    y: int = 0


class Shape(msgspec.Struct):
    name: str
    corners: list[Point] = []


class Options(TypedDict, total=False):
    size: int


class Pair(NamedTuple):
    left: str
    right: int


class Model(pydantic.BaseModel):
    when: datetime
    tags: set[str] = set()


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")

    user_name: str = pydantic.Field(alias="userName")

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def initial(self) -> str:
        return self.user_name[0]


NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
ID = UUID("01234567-89ab-cdef-0123-456789abcdef")


def task_of(hint: Any) -> Task[..., Any]:
    def work(value: Any) -> None: ...

    work.__annotations__["value"] = hint
    return App("memory://").task(work)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (str, "ü\n"),
        (str, Mood.GOOD),
        (int, 2**60),
        (int, -(2**70)),
        (float, 1.5),
        (float, 3),
        (bool, True),
        (None, None),
        (bytes, b"\x00\xff"),
        (datetime, NOON),
        (date, NOON.date()),
        (time, time(1, 2)),
        (timedelta, timedelta(seconds=1.5)),
        (UUID, ID),
        (Decimal, Decimal("1.10")),
        (Color, Color.RED),
        (Mood, Mood.GOOD),
        (Literal["a", 1], "a"),
        (Optional[int], None),  # noqa: UP045 - users write it
        (int | None, 5),
        (str | int | None, "a"),
        (list[int], [1, 2]),
        (tuple[int, str], (1, "a")),
        (set[str], {"a"}),
        (frozenset[int], frozenset({1})),
        (Sequence[int], [1]),
        (Mapping[str, int], {"a": 1}),
        (dict[int, Color], {1: Color.BLUE}),
        (dict[str, list[datetime]], {"a": [NOON]}),
        (Point, Point(1, 2)),
        (list[Point], [Point(1), Point(2)]),
        (Shape, Shape("box", [Point(1, 1)])),
        (Shape | None, Shape("dot")),
        (Options, {"size": 1}),
        (Pair, Pair("a", 1)),
        (Model, Model(when=NOON, tags={"a"})),
        (Model | None, None),
        (Strict, Strict(userName="ann")),
        (list[Model], [Model(when=NOON)]),
        (dict[str, Model], {"a": Model(when=NOON)}),
        (Annotated[int, msgspec.Meta(ge=1)], 1),
        (Any, {"a": [1, None, "b"]}),
        (object, ["a", 1.5]),
    ],
    ids=repr,
)
def test_a_value_survives_encoding_and_decoding(hint: Any, value: Any) -> None:
    task = task_of(hint)
    for new in (task.job(value), task.job(value=value)):
        args, kwargs = task.call.decode(new.payload)
        assert args == []
        assert kwargs == {"value": value}
        assert type(kwargs["value"]) is type(value) or (type(value), hint) in {
            (int, float),
            (Mood, str),
        }


@pytest.mark.parametrize(
    ("hint", "value", "says"),
    [
        (float, 10**400, "out of range"),
        (str, 1, "Expected `str`, got `int`"),
        (str, None, "Expected `str`, got `null`"),
        (str, NOON, "Expected `str`, got `datetime`"),
        (str, ID, "Expected `str`, got `UUID`"),
        (str | None, b"a", "Expected `str | null`, got `bytes`"),
        (Annotated[str, "aside"], ID, "Expected `str`, got `UUID`"),
        (int, "1", "Expected `int`, got `str`"),
        (int, True, "Expected `int`, got `bool`"),
        (int, 1.5, "Expected `int`, got `float`"),
        (bool, 1, "Expected `bool`, got `int`"),
        (float, "1", "Expected `float | int`, got `str`"),
        (Color, "green", "Invalid enum value 'green'"),
        (Literal["a"], "b", "Invalid enum value 'b'"),
        (datetime, "yesterday", "Invalid RFC3339"),
        (list[int], [1, "2"], "argument `value[1]`: Expected `int`, got `str`"),
        (Point, Point("1"), "argument `value.x`: Expected `int`, got `str`"),  # type: ignore[arg-type]
        (Shape, {"corners": []}, "missing required field `name`"),
        (Model, {"tags": []}, "when"),
        (Annotated[int, msgspec.Meta(ge=1)], 0, "Expected `int` >= 1"),
        (Any, 1j, "complex cannot be encoded as JSON"),
        (Any, {(1, 2): 3}, "a tuple cannot be a key in JSON"),
        (Any, [float("nan")], "JSON has no nan"),
        (float, float("inf"), "JSON has no inf"),
        (float | None, float("-inf"), "JSON has no -inf"),
        (Point, Point(float("nan")), "JSON has no nan"),  # type: ignore[arg-type]
        (Any, "\ud800", "lone surrogate"),
    ],
    ids=repr,
)
def test_a_value_of_the_wrong_type_is_refused_with_the_argument_name(
    hint: Any, value: Any, says: str
) -> None:
    task = task_of(hint)
    for attempt in (
        lambda: task.enqueue(value),
        lambda: task.enqueue(value=value),
        lambda: task.job(value),
        lambda: task.app.enqueue("work", {"value": value}),
    ):
        with pytest.raises(InvalidError) as raised:
            attempt()
        assert says in str(raised.value)
        assert str(raised.value).startswith("work: argument `value")
    assert task.app.queue.stats().total == 0


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidError, match="argument `value`: it contains itself"):
        task_of(Any).job(loop)


def test_a_null_beside_numbers_is_not_taken_for_nan() -> None:
    task = task_of(dict[str, float | None])
    assert task.call.decode(task.job({"a": None, "b": 1.0}).payload)[1] == {
        "value": {"a": None, "b": 1.0}
    }


class Custom: ...


@dataclass
class Holder:
    inner: list[Custom]


@dataclass
class Tree:
    children: list[Tree]


@pytest.mark.parametrize(
    "hint",
    [
        Custom,
        list[Custom],
        dict[str, Custom | None],
        Holder,
        Callable[[int], str],
        type[int],
        Iterable[int],
        str | datetime,
        complex,
    ],
    ids=repr,
)
def test_a_hint_that_cannot_be_json_is_refused_at_decoration(hint: Any) -> None:
    with pytest.raises(InvalidError, match=r"work: parameter `value: .*cannot be passed as JSON"):
        task_of(hint)


def test_a_return_hint_that_cannot_be_json_is_refused_too() -> None:
    def work() -> Custom:
        return Custom()

    with pytest.raises(InvalidError, match=r"return type `.*Custom` cannot be stored"):
        App("memory://").task(work)


def test_a_type_may_contain_itself() -> None:
    task = task_of(Tree)
    tree = Tree([Tree([]), Tree([Tree([])])])
    assert task.call.decode(task.job(tree).payload)[1] == {"value": tree}


# -- parameters of every kind ---------------------------------------------------


@app.task
def plain(to: str, subject: str = "hi", *, copies: int = 1, urgent: bool) -> None: ...


@app.task
def every(first: int, second: int = 2, /, third: int = 3, *rest: float, key: str = "k") -> None: ...


@app.task
def open_ended(first: str, /, **extra: int) -> None: ...


@app.task
def unannotated(a, b=None):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    return a, b


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "payload"),
    [
        (plain, ("a",), {"urgent": True}, {"to": "a", "urgent": True}),
        (plain, (), {"to": "a", "urgent": True}, {"to": "a", "urgent": True}),
        (
            plain,
            ("a", "b"),
            {"urgent": False, "copies": 1},
            {"to": "a", "subject": "b", "urgent": False, "copies": 1},
        ),
        (every, (1,), {}, {"*": [1]}),
        (every, (1, 9), {"key": "x"}, {"*": [1, 9], "key": "x"}),
        (every, (1, 9), {"third": 8}, {"*": [1, 9], "third": 8}),
        (every, (1, 9, 8), {}, {"*": [1, 9], "third": 8}),
        (every, (1, 9, 8, 7.5, 6), {"key": "x"}, {"*": [1, 9, 7.5, 6], "third": 8, "key": "x"}),
        (open_ended, ("a",), {}, {"*": ["a"]}),
        (open_ended, ("a",), {"first": 1, "b": 2}, {"*": ["a"], "first": 1, "b": 2}),
        (unannotated, (1,), {}, {"a": 1}),
        (unannotated, ([1, "x"], {"y": None}), {}, {"a": [1, "x"], "b": {"y": None}}),
    ],
)
def test_a_call_is_stored_by_name_and_repeated_exactly(
    task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], payload: dict[str, Any]
) -> None:
    new = task.job(*args, **kwargs)
    assert msgspec.json.decode(new.payload) == payload
    again_args, again_kwargs = task.call.decode(new.payload)
    given, again = task.call._signature.bind(*args, **kwargs), None
    again = task.call._signature.bind(*again_args, **again_kwargs)
    given.apply_defaults()
    again.apply_defaults()
    assert again.arguments == given.arguments


@pytest.mark.parametrize(
    ("task", "args", "kwargs", "says"),
    [
        (plain, (), {}, "plain: missing a required argument: 'to'"),
        (plain, ("a",), {}, "missing a required keyword-only argument: 'urgent'|'urgent'"),
        (plain, ("a", "b", True), {}, "too many positional arguments"),
        (plain, ("a",), {"urgent": True, "to": "b"}, "multiple values for argument 'to'"),
        (plain, ("a",), {"urgent": True, "cc": 1}, "unexpected keyword argument 'cc'"),
        (every, (), {}, "missing a required argument: 'first'"),
        (every, (), {"first": 1}, "'first'"),
        (every, ("1",), {}, "every: argument `first`: Expected `int`, got `str`"),
        (every, (1, 2, 3, "4"), {}, r"every: argument `\*`: Expected `float`, got `str`"),
        (open_ended, ("a",), {"b": "x"}, "open_ended: argument `b`: Expected `int`, got `str`"),
        (open_ended, ("a",), {"*": 1}, "cannot be named '\\*'"),
    ],
)
def test_a_call_that_does_not_fit_is_refused(
    task: Task[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], says: str
) -> None:
    with pytest.raises(InvalidError, match=says):
        task.job(*args, **kwargs)


@pytest.mark.parametrize(
    ("task", "payload", "says"),
    [
        (plain, b"nonsense", "plain: the payload is not a JSON object"),
        (plain, b"[1]", "plain: the payload is not a JSON object"),
        (plain, b"", "plain: argument `to` is missing"),
        (plain, b'{"to": "a"}', "plain: argument `urgent` is missing"),
        (plain, b'{"to": "a", "urgent": true, "cc": 1}', "plain: unknown argument `cc`"),
        (plain, b'{"to": 1, "urgent": true}', "plain: argument `to`: Expected `str`, got `int`"),
        (plain, b'{"to": "a", "urgent": true, "*": [1]}', "plain: too many positional values"),
        (every, b'{"*": 1}', r"every: argument `\*`: Expected `array`"),
        (every, b"{}", "every: argument `first` is missing"),
        (every, b'{"first": 1}', "every: unknown argument `first`"),
    ],
)
def test_a_payload_from_elsewhere_that_does_not_fit_is_refused(
    task: Task[..., Any], payload: bytes, says: str
) -> None:
    with pytest.raises(InvalidError, match=says):
        task.call.decode(payload)


def test_a_payload_from_elsewhere_may_leave_defaults_out_before_starred_ones() -> None:
    assert every.call.decode(b'{"*": [1, 2, 0.5]}') == ([1, 2, 3, 0.5], {})


def test_a_payload_from_elsewhere_may_give_arguments_by_position() -> None:
    @App("memory://").task
    def add(a: int, b: int, *rest: int, c: int = 0) -> None: ...

    positional = b'{"*": ["x", "y"], "urgent": true}'
    assert plain.call.decode(positional) == ([], {"to": "x", "subject": "y", "urgent": True})
    assert add.call.decode(b'{"*": [1, 2], "c": 3}') == ([], {"a": 1, "b": 2, "c": 3})
    assert add.call.decode(b'{"*": [1, 2, 3, 4]}') == ([1, 2, 3, 4], {})
    with pytest.raises(InvalidError, match="too many positional values"):
        plain.call.decode(b'{"*": ["x", "y", "z"], "urgent": true}')
    with pytest.raises(InvalidError, match="argument `to`: Expected `str`, got `int`"):
        plain.call.decode(b'{"*": [1], "urgent": true}')


def test_a_parameter_may_have_any_name() -> None:
    @App("memory://").task
    def work(self: int, task: str = "", *, id: int, queue: str = "") -> None: ...

    payload = work.job(self=1, id=2, queue="x").payload
    assert work.call.decode(payload) == ([], {"self": 1, "id": 2, "queue": "x"})
    work(self=1, id=2)
    work.enqueue(self=1, id=2)
    work.using(id="a").enqueue(self=1, id=2, task="t")


def test_the_message_shows_how_the_task_is_called() -> None:
    with pytest.raises(InvalidError) as raised:
        plain.job()  # type: ignore[call-arg]
    assert "plain(to: str, subject: str = 'hi', *, copies: int = 1, urgent: bool) -> None" in str(
        raised.value
    )


# -- hints that are not defined yet -----------------------------------------------


@app.task
def early(value: Later) -> Later:
    return value


@app.task
def never(value: Nowhere) -> None: ...  # type: ignore[name-defined] # noqa: F821


@dataclass
class Later:
    n: int


def test_a_hint_may_name_a_class_defined_further_down() -> None:
    assert early.call.decode(early.job(Later(1)).payload)[1] == {"value": Later(1)}
    with pytest.raises(InvalidError, match=r"early: argument `value\.n`: Expected `int`"):
        early.job(Later("x"))  # type: ignore[arg-type]


def test_a_hint_with_an_undefined_name_is_refused_at_the_first_use() -> None:
    for use in (lambda: never.job(1), lambda: never.call.decode(b"{}")):
        with pytest.raises(InvalidError) as raised:
            use()
        assert "never: argument `value`: name 'Nowhere' is not defined" in str(raised.value)
        assert "TYPE_CHECKING" in str(raised.value)


def test_a_hint_may_name_a_class_of_a_half_imported_module(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("half_imported")
    monkeypatch.setitem(globals(), "half_imported", module)

    def late(value: Any) -> None: ...

    late.__annotations__["value"] = "half_imported.Thing"
    task = App("memory://").task(late)
    with pytest.raises(InvalidError, match=r"late: argument `value`: .*no attribute 'Thing'"):
        task.job(Later(1))
    module.Thing = Later  # type: ignore[attr-defined]
    assert task.call.decode(task.job(Later(1)).payload)[1] == {"value": Later(1)}


def test_a_hint_with_a_syntax_error_is_refused_at_decoration() -> None:
    with pytest.raises(InvalidError, match="work: its type hints cannot be read"):
        task_of("list[")


def test_a_task_may_never_return() -> None:
    def endless() -> NoReturn:
        raise KeyError

    assert App("memory://").task(endless).job().payload == b"{}"
