"""Executors run the functions of tasks.

in_process       Functions on the event loop, and in threads.
middleware       The hooks of an app, called around each function.
protocol         The messages between a worker and its subprocesses.
subprocess       Functions in subprocesses: the code in the worker.
subprocess_main  Functions in subprocesses: the code in the subprocess.
"""
