"""`queuectl worker`: start, list, stop and check workers.

commands    The four commands and their options.
plan        The plan that the supervisor process of `start` gets as data.
supervise   The supervisor process, in the foreground or in the background.
background  Starts that process apart from the terminal, and waits until its workers register.
fleet       The workers and supervisors that are registered in a store; `list` and `check`.
stop        Which workers are meant, how each is told to stop, the wait for their end, the report.
"""
