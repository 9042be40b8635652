"""Message traces in the form of RocketMQ's clients.

Here: the format and its sender. Not here: what is traced. Invariants: tracing never delays or fails what it traces, and
its memory is limited.
"""
