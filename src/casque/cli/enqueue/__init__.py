"""`queuectl enqueue`: one job from its arguments, or many from stdin.

fast_args   Reads the arguments of one job without Typer.
typer_args  Reads the arguments with Typer, which prints help and errors.
fields      Turns the fields of a job, from JSON or options, into a checked job.
one         Enqueues one job, after either module has read its arguments.
stdin       Enqueues many jobs, one JSON object per line.

Two modules read the arguments because Typer and Rich are slow to import, and hooks and scripts call
`enqueue` all day. A call takes 120 ms of CPU time with `fast_args` and 200 ms with Typer (Python
3.11, SQLite). A test checks that both give the same result.
"""
