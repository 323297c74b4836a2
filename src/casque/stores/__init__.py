"""Stores: what keeps jobs, behind one port.

last_answers  What each writer was last told, so that a repeated commit is told the same.
listeners     Who is to be woken when a job may have become claimable.
memory        The rules and a lock.
port          `Store`: what every store promises.
replaced      The errors for who had a queue open that is another by now, or is gone.
state_reads   The reads of every store that has a `State`, written once.
threaded      A store that blocks, made fit for an event loop.
url           `open_store`: from an address to a store. The only module that knows every store.
document/     The document store: a whole queue in one JSON object.
ledger/       The ledger store: a queue as a log of committed batches in a bucket.
sqlite/       The SQLite store: a queue in one file.
"""
