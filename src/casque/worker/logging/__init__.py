"""What a worker writes to its log.

console             The lines for a person who watches.
events              What a worker says in the log.
nonblocking_stream  Writes a log without waiting for those who are to read it.
setup               The lines of a log, for people or for programs.
"""
