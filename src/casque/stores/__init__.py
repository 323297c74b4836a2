"""Stores: they keep jobs, behind one port.

callers_connection  Finds the driver's connection in an object of Django or SQLAlchemy.
conflicts           When a commit that keeps losing the race to other writers gives up.
creation            Reports a queue that this process has made.
description         What a store knows of itself, and the requests that it has sent.
last_answers        The last answer to each writer, so that a repeated commit gets the same one.
listeners           The waiting dequeues to wake when a job may have become claimable.
maintenance         What a store offers to an operator: `verify` and `adopt`.
memory              The memory store: applies the rules to a state in memory, under a lock.
place_errors        Errors for a queue that is missing, or replaced by something else.
port                `Store`: the interface of every store, and its promises.
state_reads         The reads that all stores with a `State` share.
threaded            Runs a blocking store on threads, for use in an event loop.
url                 `open_store`: opens the store at an address. Only this module lists every store.
document/           The document store: a whole queue in one JSON object.
ledger/             The ledger store: a queue as a log of committed batches in a bucket.
sqlite/             The SQLite store: a queue in one file.
"""
