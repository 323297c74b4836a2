"""Executors: where the function of a task runs.

in_process       Where functions run: the event loop and threads; middleware around them.
subprocess       Functions in processes of their own: both ends.
subprocess_main  Functions in processes of their own: both ends.
"""
