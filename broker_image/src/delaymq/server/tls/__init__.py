"""Server-side TLS: contexts, certificates and their renewal at run time.

Here: what a server presents and accepts. Not here: handshakes on a connection (transport/). Invariant: a broken pair of
files never replaces a working one.
"""
