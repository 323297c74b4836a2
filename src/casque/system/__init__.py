"""Access to the machine: time, ids, forks, locks, disks, the terminal.

background     Work that runs beside the callers, as a task or on a thread.
bell_asyncio   A wake-up signal (`Bell`) that a task of an event loop waits for.
clock          Time and randomness for all other modules; `drive`, which runs coroutines.
durations      Durations as people write them: `90`, `30s`, `5m`.
forks          Detects forks, also those in C; one registry of fork callbacks for all modules.
ids            Ids that rise within a process, and their order.
local_disk     Durable folders; locks between processes; detection of network drives.
near_names     The known names that a mistyped name was probably meant to be.
reentry        Rejects calls that a signal handler makes in the middle of another call.
terminal_text  Makes any text safe to print on a terminal.
"""
