"""Several broker groups under one supervisor process.

Here: the supervisor, its child processes, and its HTTP interface. Not here: names, ports and folders of the groups
(cli/servers/groups.py). Invariants: each process has one store; no broker runs without its supervisor.
"""
