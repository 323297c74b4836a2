"""`queuectl worker`: start, list, stop and check workers.

commands    The four commands and their options.
plan        The plan that `start` sends to its supervisor process.
supervise   The supervisor process, in the foreground or in the background.
background  Starts the supervisor detached from the terminal, and waits for its workers.
fleet       The workers and supervisors that are registered in a store; `list` and `check`.
stop        Chooses the workers, orders them to stop, waits for them and reports.
"""
