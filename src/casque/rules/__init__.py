"""The rules of a queue: pure, no I/O. The specification, and the model that SQL is checked against.

additions    Which jobs an enqueue adds, and which of its ids existed.
answers      The data stored with a remote batch, to answer a repeat of it.
comparison   Whether two states are equal, and whether indexes fit their jobs.
counts       Counts per status, updated with every change.
decide       `decide`: all queue semantics.
evolve       `evolve`: applies an event to the state.
insertion    Which jobs of another store are added.
lines        Lines, and the rotation in which they take turns.
operations   Operations (`Enqueue` …, in a `Batch`) and events (`Added` …).
picking      Which jobs a dequeue takes, and in which order.
records      A change of a record names the version that it expects.
retention    How long dead and cancelled jobs are kept.
sorted_keys  A sorted set that stays fast at a million keys.
state        `State`: everything a store holds, indexed, with undo. `QueueState`, the frozen view.
ticks        Whether a tick of a schedule may fire, and the schedule after it.
transaction  `transact`: decides batches and applies their events, as one transaction.
transitions  Applies an event to one job.
views        What a reader sees of a state.
"""
