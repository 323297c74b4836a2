"""Queues: the objects that users hold, and the way of an operation to the store.

arguments       `NewJob`, and its checked form.
async_queue     `DirectQueue` and `BrokerQueue`: every method, as operations.
commit          Group commit: what both kinds of callers share.
commit_asyncio  Group commit for the tasks of an event loop.
commit_threads  Group commit for plain threads.
heartbeat       `HeartbeatManager`: keep a job's lease alive.
held_claims     Which claims a queue object was handed, so that it can speak of a job by id.
lease_keeper    The beating behind both: repeat, notice a loss, end the body.
lineage         Whether this code runs inside a job, and how deep.
lock            `Lock`: one holder or n, over a store.
operators       The half of a queue that is for operators: cancel, retry, purge, pause …, and
                looking.
runner          How sync code runs our coroutines, without an event loop and with one.
runner_asyncio  How sync code runs our coroutines, without an event loop and with one.
session         One open use of a store: the writer, the worker's name, whether it may still be
                used.
sync_queue      `Queue`: the same without `await`, a facade.
"""
