"""Queues: the classes for users, and how their operations reach the store.

arguments       `NewJob`, and its checked form.
async_queue     `DirectQueue` and `BrokerQueue`: the queues for async code.
commit          Group commit: the part that threads and tasks share.
commit_asyncio  Group commit for the tasks of an event loop.
commit_threads  Group commit for plain threads.
content_ids     `content_id`: the same id for the same work.
heartbeat       `HeartbeatManager`: keep a job's lease alive.
held_claims     The claims that a queue object got, so that callers can pass a job's id.
lease_keeper    Renews a lease for `HeartbeatManager` and `Lock`, and notices a loss.
lineage         Whether this code runs inside a job, and how deep.
lock            `Lock`: a lock kept in a store.
operators       The methods for operators: cancel, retry, purge, pause …, and reading.
refusals        How an enqueue that the loop guard refused tells the worker of its shell job.
runner          Runs our coroutines for sync code, without an event loop.
runner_asyncio  Runs our coroutines for sync code, with an event loop on a thread.
running_job     `RunningJob`: the job that this code runs in.
session         A queue's or lock's connection to its store, with a writer and a worker name.
sync_queue      `Queue`: the methods of `async_queue` without `await`.
"""
