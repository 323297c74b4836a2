"""Supervision: worker processes that are kept running.

channel        The socket between a supervisor and a child: orders, complaints, exit codes.
child_main     The child's side: from its orders to its exit code.
child_process  The supervisor's side: start, signal and reap a child.
registration   The supervisor's own entry in the store.
signals        How one worker handles signals.
supervisor     `Supervisor`: several worker processes, kept running.
wakeups        One object to wait on for signals, other threads and time.
"""
