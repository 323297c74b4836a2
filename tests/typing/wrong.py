"""Uses that type checkers must refuse, each on a line marked `# wrong`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from casque import App, Backoff, Discard, Handle, Retry, Snooze

app = App("memory://")


@app.task
async def send_email(to: str, subject: str = "hi") -> int:
    return len(to) + len(subject)


@app.task(priority=1)
def add(a: int, b: int = 0, *, c: bool = False) -> int:
    return a + b + c


def arguments() -> None:
    send_email.enqueue(1)  # wrong
    send_email.enqueue()  # wrong
    send_email.enqueue("a", "b", "c")  # wrong
    send_email.enqueue("a", cc="b")  # wrong
    send_email.enqueue(to="a", subject=None)  # wrong
    send_email.job(b"a")  # wrong
    add.enqueue("1")  # wrong
    add.enqueue(1, 2, True)  # wrong
    add.enqueue(1, c="yes")  # wrong
    add.using(delay=timedelta(seconds=1)).enqueue("1")  # wrong
    add.using(priority=1).using(queue="q").job(None)  # wrong
    add("1")  # wrong


async def arguments_in_a_loop() -> None:
    await send_email.aenqueue(1)  # wrong
    await send_email.using(id="a").aenqueue("a", 2)  # wrong
    await send_email(1)  # wrong
    await add(1)  # wrong
    await add.enqueue(1).result()  # wrong


def results() -> None:
    text: str = add.enqueue(1).result()  # wrong
    handle: Handle[str] = send_email.enqueue("a")  # wrong
    number: int = send_email("a")  # wrong
    print(text, handle, number)


def options() -> None:
    add.using(delay=5)  # wrong
    add.using(colour="red")  # wrong
    add.using(connection=None).enqueue("1")  # wrong
    add.job(1, connection=None)  # wrong
    add.using(headers={"trace": 1})  # wrong
    add.enqueue(1).result(timeout=5)  # wrong
    app.enqueue("add", [1])  # wrong
    app.enqueue_many([("add", b"")])  # wrong
    app.work(lease=60)  # wrong
    app.watch("inbox", add)  # wrong
    app.watch("inbox", print)  # wrong
    app.watch("inbox", send_email, debounce=1)  # wrong
    Backoff(base=2)  # wrong


@app.task(retain=60)  # wrong
def kept() -> None: ...


@app.task(run_in="somewhere")  # wrong
def placed() -> None: ...


@app.task(retry_on=ValueError)  # wrong
def retried() -> None: ...


def raises(which: int) -> Any:
    if which == 1:
        raise Retry(5)  # wrong
    if which == 2:
        raise Snooze("1 s")  # wrong
    raise Discard(None)  # wrong
