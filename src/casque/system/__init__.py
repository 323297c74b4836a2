"""What touches the machine: time, ids, forks, locks between processes, disks.

bell_asyncio   What a task of an event loop waits on.
clock          Time, chance and ids: the only door they come in by. And `drive`.
durations      Spans of time as people write them.
forks          Telling a process from its forks, those in C too.
local_disk     Folders that last; locks between processes; telling a network drive from a disk.
reentry        Refusing calls that a signal handler makes in the middle of another.
terminal_text  Texts of anybody's, made fit for a terminal.
"""
