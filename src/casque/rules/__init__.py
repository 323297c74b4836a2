"""The rules of a queue: pure, no I/O. The specification, and the model that SQL is checked against.

answers      What is stored of a remote batch's answers, and how a repeat is answered from it.
counts       Counts per status, kept with every change.
decide       `decide`: all queue semantics.
evolve       What an event makes of the state.
lines        Lines, and the rotation they take turns in.
operations   What can be asked (`Enqueue` …, in a `Batch`) and what happened (`Added` …).
picking      Which jobs a dequeue takes, and in which order.
sorted_keys  A sorted set that stays quick at a million.
state        `State`: everything a store holds, indexed, with undo. `QueueState`, the frozen view.
transaction  `transact`: batches, decided and evolved as one.
transitions  What an event makes of one job.
views        What a reader sees of a state.
"""
