"""What touches the machine: time, ids, forks, locks, disks, the terminal.

bell_asyncio   What a task of an event loop waits on.
clock          Time and chance, for all other modules. And `drive`.
durations      Spans of time as people write them.
forks          Telling a process from its forks, those in C too; one registry for all modules.
ids            Ids that rise within a process, and their order.
local_disk     Folders that last; locks between processes; telling a network drive from a disk.
reentry        Refusing calls that a signal handler makes in the middle of another.
terminal_text  Any text, made fit for a terminal.
"""
