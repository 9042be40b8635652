"""Audit log: one line for each change of a server, and for each attempt, in rotated files of its own.

Here: lines, files, rate limit of refused attempts, reading. Not here: which requests are changes (server/audit).
Invariants: a line never contains a secret; recording never raises, so no request fails because of it; the files have a
limited size; a lost line is counted in the next one.
"""
