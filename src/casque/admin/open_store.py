"""Open store: runs one call on the store at an address, and creates none."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from casque.errors import InvalidError
from casque.queues.runner import runner_for
from casque.stores.place_errors import AbsentError
from casque.stores.port import Creatable, Store
from casque.stores.url import StoreAddress, open_store

T = TypeVar("T")


def on_store(store: StoreAddress, call: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `call`. Raises InvalidError if there is no store. Blocks."""
    opened = open_store(store)
    runner = runner_for(opened)
    is_ours = opened is not store
    try:
        if is_ours and isinstance(opened, Creatable):
            opened.require_existing()
        return runner.run(call(opened))
    except AbsentError as error:
        raise InvalidError(f"there is no store at {opened.name}. Check the address.") from error
    finally:
        if is_ours:
            runner.run(opened.close())
        runner.close()
