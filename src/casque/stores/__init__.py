"""Stores: what keeps jobs, behind one port.

conflicts     When a commit that lost the write to others gives up.
last_answers  The last answer to each writer, so that a repeated commit gets the same one.
listeners     The waiting dequeues to wake when a job may have become claimable.
memory        The rules and a lock.
place_errors  The errors of a place that is empty, or holds something else.
port          `Store`: what every store promises.
state_reads   The reads of every store that has a `State`, written once.
threaded      A store that blocks, made fit for an event loop.
url           `open_store`: from an address to a store. The only module that knows every store.
document/     The document store: a whole queue in one JSON object.
ledger/       The ledger store: a queue as a log of committed batches in a bucket.
sqlite/       The SQLite store: a queue in one file.
"""
