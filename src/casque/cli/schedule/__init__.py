"""`queuectl schedule add|list|show|pause|resume|run|remove`.

changes     The schedules of a store, found and changed by name.
commands    The commands.
definition  From the options of `add` to a schedule.
tables      Schedules as tables and as JSON.
"""
