"""Which cluster a command means, and how it is asked.

Here: contexts, accounts, the client's connection, the HTTP interface. Not here: what is asked. Invariants: flags come
before environment, environment before contexts; a secret is never on a command line.
"""
