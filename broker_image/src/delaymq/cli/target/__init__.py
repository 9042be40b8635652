"""The cluster that a command uses, and the connection to it.

Here: contexts, accounts, the client's connection, the HTTP API. Not here: the requests. Invariants: flags take
precedence over the environment, the environment over contexts; secrets are never passed on the command line.
"""
