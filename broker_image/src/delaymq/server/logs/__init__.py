"""Log of a process: one line per event, limited in size and rate, written without blocking on its reader.

Here: format, rate limit, writer thread, levels. Not here: the events, which all packages log with the standard module
`logging`. Invariants: logging an event neither blocks nor raises an exception; each event is exactly one line, whatever
text of peers it contains; unread lines take bounded memory.
"""
