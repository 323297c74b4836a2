"""Supervision: worker processes that are kept running.

channel        The socket between both: orders, that the store is open, a last complaint, and who
               notices whose end.
child_main     The child's side: from its orders to its exit code.
child_process  Its side of a child: started, signalled, reaped; and orphans, as PID 1.
registration   A supervisor's own entry in the store, for whoever stops it when it has no worker.
signals        What signals mean to one worker.
supervisor     `Supervisor`: several worker processes, kept running; and what `App.work` does.
wakeups        One thing to wait on for signals, other threads and time.
"""
