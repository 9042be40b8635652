"""Recovery at start: find the end of the log, repair it, and bring queues, index and observers up to date.

This package scans the log, repairs damage, and assigns queue offsets to records. Formats of queues and index are
elsewhere. Invariant: the log is authoritative; a repair copies what it overwrites to delaymq/aside/ first.
"""
