"""Child: one worker process of a supervisor, from its orders to its exit code."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading

from casque.errors import CorruptError, InvalidError
from casque.stores.place_errors import AbsentError
from casque.worker.loading import load_app, refuse_memory
from casque.worker.logging.setup import set_up
from casque.worker.runtime import leave_at_once
from casque.worker.shell.task import add_shell
from casque.worker.supervision import channel
from casque.worker.supervision.signals import stopping_on_signals
from casque.worker.worker import Ended, Worker

_log = logging.getLogger("casque.worker")


def run_child(descriptor: int) -> int:
    """Run the worker that the supervisor orders over this socket. Returns the exit code."""
    # With `stty tostop`, a terminal stops processes like this one, outside its foreground group,
    # when they write.
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with socket.socket(fileno=descriptor) as line:
        # The processes that a task starts must not inherit it.
        line.set_inheritable(False)
        orders = channel.receive_orders(line)
        if orders is None:
            return 0
        sys.path[:] = orders.path
        try:
            ended = _work(line, orders)
        except (InvalidError, AbsentError) as error:
            channel.complain(line, str(error))
            return channel.REFUSED
        except CorruptError as error:
            # The file was replaced: the next process opens the new one.
            _log.critical("%s", error)
            return 1
    return ended.value


def _work(line: socket.socket, orders: channel.Orders) -> Ended:
    if not orders.log.yields:
        set_up(orders.log)
    app = load_app(orders.target, store=orders.store, modules=orders.modules)
    if orders.must_exist:
        app.app_store.require_existing()
    if orders.shell:
        add_shell(app)
    if orders.log.yields:
        set_up(orders.log)
    refuse_memory(app.store)

    def opened() -> None:
        app.app_store.require_existing()
        channel.say_opened(line)

    worker = Worker(
        app,
        orders.options,
        supervisor=orders.supervisor,
        supervisor_birth=orders.supervisor_birth,
        when_registered=opened,
        when_stuck=lambda why: leave_at_once(why.value),
    )

    def alone() -> None:
        _log.warning("the supervisor is gone: stopping")
        worker.stop()

    with stopping_on_signals(worker.stop, worker.stop_now, is_child=True) as restore:
        watcher = threading.Thread(
            target=channel.watch, args=(line, alone), name="casque-channel", daemon=True
        )
        watcher.start()
        return worker.run(restore_signals=restore)
