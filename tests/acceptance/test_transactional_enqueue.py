"""Programs that write a row and enqueue a task in one transaction, with Django and SQLAlchemy.

Each is run as its author would run it: the files of a project, its commands, and a worker.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from casque import JobStatus, Queue

PATIENCE = 100


def run(folder: Path, *command: str) -> str:
    """What the command prints; it must succeed, without a warning of Python."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Warning" not in done.stderr
    return done.stdout


def work(folder: Path, app: str) -> None:
    run(folder, "-m", "casque.worker", app, "--until-idle", "--log-level", "error")


def write(folder: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)


def statuses(file: Path) -> list[JobStatus]:
    with Queue(file) as q:
        return [job.status for job in q.read_state().jobs]


# -- Django --------------------------------------------------------------------

DJANGO = {
    "orders/__init__.py": "",
    "orders/models.py": """
from django.db import models


class Order(models.Model):
    item = models.TextField()
    shipped = models.BooleanField(default=False)
""",
    "orders/tasks.py": """
import os

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
django.setup()

from casque import App
from orders.models import Order

app = App("sqlite:///db.sqlite3")


@app.task
def ship(order: int) -> str:
    return f"shipped {Order.objects.filter(id=order).update(shipped=True)}"
""",
    "orders/views.py": """
import time
from datetime import timedelta

from asgiref.sync import sync_to_async
from django.db import connection, connections, transaction
from django.http import HttpResponse

from casque import CasqueError, InvalidError
from orders.models import Order
from orders.tasks import app, ship


def buy(request):
    with transaction.atomic():
        order = Order.objects.create(item="helmet")
        ship.using(connection=connection).enqueue(order.id)
        if "refused" in request.GET:
            raise ValueError("card refused")
    return HttpResponse("bought")


def nested(request):
    with transaction.atomic():
        order = Order.objects.create(item="visor")
        ship.using(connection=connections["default"]).enqueue(order.id)
        try:
            with transaction.atomic():
                gift = Order.objects.create(item="gift")
                app.enqueue_many([ship.job(gift.id)], connection=connection)
                raise ValueError("no gifts left")
        except ValueError:
            pass
    return HttpResponse("bought")


def forgets(request):
    with transaction.atomic():
        order = Order.objects.create(item="strap")
        begun = time.monotonic()
        try:
            ship.enqueue(order.id)
        except Exception as error:
            return HttpResponse(f"{time.monotonic() - begun:.0f} s: {type(error).__mro__} {error}")


def waits(request):
    with transaction.atomic():
        handle = ship.using(connection=connection).enqueue(0)
        try:
            handle.result()
        except Exception as error:
            transaction.set_rollback(True)
            return HttpResponse(f"{type(error).__name__}: {error}")


def waits_for_itself(request):
    pages = []
    with transaction.atomic():
        handle = ship.enqueue(0)  # before any write
        Order.objects.create(item="lining")
        for timeout in (timedelta(seconds=5), timedelta()):
            try:
                handle.result(timeout)
            except (InvalidError, TimeoutError) as error:
                pages.append(str(error))
        transaction.set_rollback(True)
    handle.cancel()
    try:
        handle.result()
    except CasqueError as error:
        pages.append(str(error))
    return HttpResponse("|".join(pages))


def after(request):
    with transaction.atomic():
        order = Order.objects.create(item="after")
        transaction.on_commit(lambda: ship.enqueue(order.id))
    return HttpResponse("bought")


async def in_a_loop(request):
    order = await Order.objects.acreate(item="glove")
    try:
        await ship.using(connection=connection).aenqueue(order.id)
    except Exception as error:
        return HttpResponse(f"{type(error).__name__}: {error}")


@transaction.atomic
def order_boots():
    order = Order.objects.create(item="boots")
    return ship.using(connection=connection).enqueue(order.id)


async def aside(request):
    await sync_to_async(order_boots)()
    return HttpResponse("bought")


def at_once(request):
    order = Order.objects.create(item="at once")
    handle = ship.using(connection=connection).enqueue(order.id)
    return HttpResponse(handle.status())
""",
    "shop/urls.py": """
from django.urls import path

from orders import views

NAMES = ("buy", "nested", "forgets", "waits", "after", "at_once", "in_a_loop", "aside")
NAMES += ("waits_for_itself",)
urlpatterns = [path(name, getattr(views, name)) for name in NAMES]
""",
    "visit.py": """
import json, os, sys

os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django

django.setup()
from django.test import Client

client = Client(raise_request_exception=False, headers={"host": "localhost"})
print(json.dumps([client.get(address).content.decode() for address in sys.argv[1:]]))
""",
    "show.py": """
import json
from orders.tasks import Order

print(json.dumps(list(Order.objects.order_by("id").values_list("item", "shipped"))))
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    run(tmp_path, "-m", "django", "startproject", "shop", str(tmp_path))
    settings = tmp_path / "shop" / "settings.py"
    settings.write_text(settings.read_text() + '\nINSTALLED_APPS += ["orders"]\n')
    write(tmp_path, DJANGO)
    run(tmp_path, "manage.py", "migrate", "--run-syncdb")
    return tmp_path


def visit(project: Path, *addresses: str) -> list[str]:
    pages: list[str] = json.loads(run(project, "visit.py", *addresses))
    return pages


def in_shop(project: Path) -> list[Any]:
    found: list[Any] = json.loads(run(project, "show.py"))
    return found


def test_a_django_project_stores_an_order_and_its_job_together_or_neither(project: Path) -> None:
    refused, bought, nested = visit(project, "/buy?refused", "/buy", "/nested")
    assert "card refused" in refused
    assert (bought, nested) == ("bought", "bought")
    assert statuses(project / "db.sqlite3") == [JobStatus.QUEUED] * 2
    assert in_shop(project) == [["helmet", False], ["visor", False]]
    work(project, "orders.tasks:app")
    assert in_shop(project) == [["helmet", True], ["visor", True]]
    assert statuses(project / "db.sqlite3") == [JobStatus.COMPLETED] * 2


def test_a_django_project_is_told_how_to_enqueue_inside_its_transaction(project: Path) -> None:
    waits, at_once, forgets, waits_again, after = visit(
        project, "/waits", "/at_once", "/forgets", "/waits", "/after"
    )
    assert at_once == "queued"
    assert forgets.startswith("0 s: ")
    assert "InvalidError" in forgets
    assert "task.using(connection=connection).enqueue(…)" in forgets
    assert "transaction.on_commit(…)" in forgets
    for page in (waits, waits_again):
        assert page.startswith("InvalidError: ")
        assert "has not been committed. Commit it first" in page
    assert after == "bought"
    work(project, "orders.tasks:app")
    assert in_shop(project) == [["at once", True], ["strap", False], ["after", True]]


def test_a_django_project_does_not_wait_for_a_result_inside_its_transaction(project: Path) -> None:
    [page] = visit(project, "/waits_for_itself")
    result, polled, finished = page.split("|")
    assert "no worker can finish the job" in result
    assert "Commit first: wait for the result after the `atomic()` block." in result
    assert "was not finished within 0:00:00" in polled
    assert "is cancelled" in finished


def test_an_async_view_of_django_learns_where_to_enqueue(project: Path) -> None:
    refused, bought = visit(project, "/in_a_loop", "/aside")
    assert refused.startswith("InvalidError: `connection` is Django's, which does not work in")
    assert "`sync_to_async`" in refused
    assert bought == "bought"
    work(project, "orders.tasks:app")
    assert in_shop(project) == [["glove", False], ["boots", True]]


# -- SQLAlchemy ----------------------------------------------------------------

MODELS = """
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from casque import App

engine = create_engine("sqlite:///shop.db")
app = App("sqlite:///shop.db")


class Base(DeclarativeBase): ...


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    shipped: Mapped[bool] = mapped_column(default=False)


@app.task
def ship(order: int) -> str:
    with Session(engine) as session, session.begin():
        session.get_one(Order, order).shipped = True
    return "shipped"
"""

PROGRAM = """
import asyncio

from sqlalchemy import insert, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from shop import Base, Order, app, engine, ship


def with_a_session(order, end):
    with Session(engine) as session:
        session.add(Order(id=order))
        ship.using(connection=session).enqueue(order)
        getattr(session, end)()


def with_a_session_that_has_flushed(order, end):
    with Session(engine) as session:
        session.add(Order(id=order))
        session.flush()
        app.enqueue("ship", {"order": order}, connection=session)
        getattr(session, end)()


def with_a_connection(order, end):
    with engine.connect() as connection:
        connection.execute(insert(Order).values(id=order, shipped=False))
        app.enqueue_many([ship.job(order)], connection=connection)
        getattr(connection, end)()


def with_a_raw_connection(order, end):
    raw = engine.raw_connection()
    ship.using(connection=raw).enqueue(order)
    raw.cursor().execute("INSERT INTO orders VALUES (?, 0)", [order])
    getattr(raw, end)()
    raw.close()


def with_an_async_session(order, end):
    asyncio.run(in_a_loop(order, end))


async def in_a_loop(order, end):
    engine = create_async_engine("sqlite+aiosqlite:///shop.db")
    async with AsyncSession(engine) as session:
        session.add(Order(id=order))
        await session.run_sync(lambda sync: ship.using(connection=sync).enqueue(order))
        await getattr(session, end)()
    await engine.dispose()


Base.metadata.create_all(engine)
ways = [
    with_a_session,
    with_a_session_that_has_flushed,
    with_a_connection,
    with_a_raw_connection,
    with_an_async_session,
]
for number, way in enumerate(ways, 1):
    for order, end in ((10, "rollback"), (0, "commit"), (20, "rollback")):
        way(order + number, end)
with Session(engine) as session:
    print([order.id for order in session.scalars(select(Order))])
print([job.payload.decode() for job in app.queue.read_state().jobs])
"""

AFTER = """
from sqlalchemy import select
from sqlalchemy.orm import Session
from shop import Order, engine

with Session(engine) as session:
    print([(order.id, order.shipped) for order in session.scalars(select(Order))])
"""


def test_sqlalchemy_stores_a_row_and_its_job_together_or_neither(tmp_path: Path) -> None:
    write(tmp_path, {"shop.py": MODELS, "buy.py": PROGRAM, "after.py": AFTER})
    assert run(tmp_path, "-W", "error", "buy.py").splitlines() == [
        "[1, 2, 3, 4, 5]",
        str([f'{{"order":{number}}}' for number in range(1, 6)]),
    ]
    work(tmp_path, "shop:app")
    assert run(tmp_path, "after.py") == f"{[(number, True) for number in range(1, 6)]}\n"
    assert statuses(tmp_path / "shop.db") == [JobStatus.COMPLETED] * 5
