"""`queuectl worker`: start, list, stop and check workers.

background   Workers that outlive the command that starts them.
commands     `worker start`, `list`, `stop` and `check`.
fleet        The workers of a store as commands see and show them.
plan         What `worker start` was asked for, checked.
stop         Workers told to stop: by a signal here, elsewhere through the store.
wait         Until they have ended; and what became of them.
"""
