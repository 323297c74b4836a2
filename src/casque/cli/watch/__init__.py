"""`queuectl watch`: files that change become shell jobs.

command           The command: its arguments, and the lines that it prints.
command_template  The command line, in which the quoted path replaces `{path}`.
"""
